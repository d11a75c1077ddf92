"""What a prediction holds, draws and writes, against samples made by hand."""

from dataclasses import replace

import cv2
import numpy as np
import pytest
import torch
from mmengine.structures import BaseDataElement, InstanceData, PixelData
from PIL import Image

from mmlinattn.apis import Prediction, coco_categories

RED, GREEN, BLUE = (200, 10, 10), (10, 200, 10), (10, 10, 200)
CATEGORIES = coco_categories(['cat', 'dog', 'owl'], [RED, GREEN, BLUE], ids=[17, 18, 16])
IMAGE = np.zeros((40, 60, 3), np.uint8)


def of(min_score=0.5, categories=CATEGORIES, **content):
    return Prediction(BaseDataElement(**content), 0.02, IMAGE, 'in/a.b.jpg', categories, min_score)


@pytest.fixture
def objects():
    masks = torch.zeros(3, 40, 60, dtype=torch.bool)
    masks[1, 25:35, 3:9] = True
    found = InstanceData(
        bboxes=torch.tensor([[0.0, 0, 9, 9], [3, 25, 9, 35], [1, 1, 2, 2]]),
        scores=torch.tensor([0.9, 0.5, 0.4]),
        labels=torch.tensor([2, 0, 1]),
        masks=masks,
    )
    return of(pred_instances=found)


@pytest.fixture
def regions():
    labels = torch.zeros(1, 40, 60, dtype=torch.int64)
    labels[0, 10:20, 30:40] = 2
    return of(pred_sem_seg=PixelData(data=labels))


@pytest.fixture
def scores():
    return of(pred_score=torch.tensor([0.2, 0.7, 0.1]))


def test_objects(objects):
    assert objects.boxes.tolist() == [[0, 0, 9, 9], [3, 25, 9, 35]]
    assert objects.labels.tolist() == [2, 0] and objects.names == ['owl', 'cat']
    assert objects.scores.tolist() == [pytest.approx(0.9), 0.5]
    assert objects.masks.shape == (2, 40, 60) and objects.masks[1].sum() == 60
    assert objects.segmentation is None
    nothing = InstanceData(
        bboxes=torch.zeros(0, 4), scores=torch.zeros(0), labels=torch.zeros(0, dtype=torch.int64)
    )
    empty = of(pred_instances=nothing)
    assert empty.boxes.shape == (0, 4) and empty.masks is None


def test_regions(regions):
    assert regions.segmentation.shape == (40, 60) and regions.segmentation[15, 35] == 2
    assert regions.labels.tolist() == [0, 2] and regions.names == ['cat', 'owl']
    assert regions.boxes is None and regions.masks is None and regions.scores is None


def test_scores(scores):
    assert scores.labels.tolist() == [1, 0, 2] and scores.names == ['dog', 'cat', 'owl']
    np.testing.assert_allclose(scores.scores, [0.7, 0.2, 0.1])
    assert scores.boxes is None


def test_picture_is_bgr(objects, regions, scores, tmp_path):
    """Drawn by the framework, in the colours of the classes, as OpenCV writes them."""
    drawn = objects.plot().astype(int)
    # The cat is red, in the left below, and the owl is blue, in the left above.
    assert (drawn[22:, :12, 2] - drawn[22:, :12, 0]).max() > 100
    assert (drawn[:12, :12, 0] - drawn[:12, :12, 2]).max() > 100
    assert regions.plot()[15, 35].tolist() == [x // 2 for x in BLUE[::-1]]
    assert not replace(objects, min_score=0.95).plot().any()
    assert scores.plot().any() and scores.plot().shape == IMAGE.shape
    for path in (tmp_path / 'new' / 'a.png', tmp_path / 'a.JPG'):
        assert objects.save(path) == path
        saved = cv2.imread(str(path))
        assert abs(saved - drawn).mean() < (1 if path.suffix == '.png' else 20)
    np.testing.assert_array_equal(
        cv2.imdecode(np.frombuffer(regions._repr_png_(), np.uint8), cv2.IMREAD_COLOR),
        regions.plot(),
    )


@pytest.mark.parametrize('name', ['a', 'a.xyz', 'a.txt', 'a.pbm', 'a.exr'])
def test_suffix_that_cannot_be_written(objects, tmp_path, name):
    with pytest.raises(ValueError, match=f"path must end with .json, .png, .jpg.*{name}'"):
        objects.save(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_indexed_png(regions, objects, tmp_path):
    image = Image.open(regions.save_labels(tmp_path / 'a.png'))
    assert image.mode == 'P'
    np.testing.assert_array_equal(np.asarray(image), regions.segmentation)
    assert image.convert('RGB').getpixel((35, 15)) == BLUE
    with pytest.raises(ValueError, match='save_labels needs a segmentor'):
        objects.save_labels(tmp_path / 'b.png')
    with pytest.raises(ValueError, match='labels are saved as .png, got .*d.jpg'):
        regions.save_labels(tmp_path / 'd.jpg')
    many = coco_categories([f'{i}' for i in range(300)], [RED] * 300)
    with pytest.raises(ValueError, match='at most 256 classes'):
        replace(regions, categories=many).save_labels(tmp_path / 'c.png')
