"""Maps of background, interior and border from the instances of a COCO file."""

import json
from itertools import groupby, islice

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import DATASETS, init_default_scope
from pycocotools import mask as coco_mask

from mmlinattn.apis import load
from mmlinattn.datasets import AreaSampler, InstanceMaps, LoadInstanceMap


def rle(mask):
    encoded = coco_mask.encode(np.asfortranarray(mask.astype(np.uint8)))
    return {'size': encoded['size'], 'counts': encoded['counts'].decode()}


def draw(*masks, shape=(12, 14)):
    sample = dict(ori_shape=shape, masks=list(masks), seg_fields=[])
    return LoadInstanceMap()(sample)['gt_seg_map']


def definition(masks, shape):
    """Interior: an instance and its 8 neighbours within the image; border: a neighbour differs."""
    out = np.zeros(shape, int)
    for value in (1, 2):
        for mask in masks:
            for y, x in np.ndindex(*shape):
                around = mask[max(y - 1, 0) : y + 2, max(x - 1, 0) : x + 2]
                if value == (1 if around.all() else 2 if around.any() else 0):
                    out[y, x] = value
    return out


def test_map_of_instances_that_touch_overlap_and_leave_the_image():
    shape = (12, 14)
    masks = np.zeros((4, *shape), bool)
    masks[0, 2:8, 1:6] = masks[1, 2:8, 6:11] = masks[2, 5:, 8:] = True
    masks[3, 10, 2] = True  # one pixel, which has no interior
    found = draw(*(rle(mask) for mask in masks))
    np.testing.assert_array_equal(found, definition(masks, shape))
    assert (found[9:12, 1:4] == 2).all() and found.dtype == np.uint8
    np.testing.assert_array_equal(draw(rle(masks[3] & False)), 0)  # an empty mask


def test_kinds_of_masks():
    square = np.zeros((12, 14), np.uint8)
    square[3:9, 4:10] = 1
    counts = [len(list(run)) for _, run in groupby(square.T.flat)]
    polygon = [[4, 3, 10, 3, 10, 9, 4, 9]]
    uncompressed = dict(size=[12, 14], counts=counts)
    for mask in (polygon, uncompressed):
        np.testing.assert_array_equal(draw(mask), draw(rle(square)))


def test_images_without_instances_and_annotations_without_masks(tmp_path):
    images = [dict(id=i, file_name=f'{i}.jpg', height=4, width=4) for i in (1, 2)]
    whole = dict(id=7, image_id=2, category_id=1, segmentation=[[0, 0, 4, 0, 4, 4, 0, 4]])
    path = tmp_path / 'a.json'
    path.write_text(json.dumps(dict(images=images, annotations=[whole], categories=[])))
    data = InstanceMaps(str(path), data_prefix=dict(img_path='images'))
    assert [len(data.get_data_info(i)['masks']) for i in range(2)] == [0, 1]
    assert data.get_data_info(1)['img_path'] == 'images/2.jpg'
    path.write_text(json.dumps(dict(images=images, annotations=[dict(whole, segmentation=[])])))
    with pytest.raises(ValueError, match=r'a.json: annotation 7 has no segmentation'):
        InstanceMaps(str(path))
    path.write_text(json.dumps(dict(images=images, annotations=[dict(whole, image_id=9)])))
    with pytest.raises(ValueError, match=r'annotation 7 is of image 9, which is not there'):
        InstanceMaps(str(path))
    path.write_text(json.dumps(dict(images=images, annotations=[dict(whole, iscrowd=1)])))
    assert InstanceMaps(str(path)).get_data_info(1)['masks'] == []


@pytest.mark.parametrize('mask', [
    rle(np.ones((4, 5))), [[1, 2]], dict(size=[4, 4], counts='0'), dict(size=[4, 4], counts=[9, 2]),
])  # fmt: skip
def test_masks_that_do_not_fit_name_the_image(mask):
    sample = dict(ori_shape=(4, 4), masks=[mask], seg_fields=[], img_path='b.jpg')
    with pytest.raises(ValueError, match='b.jpg of 4 x 4 pixels has a mask that does not fit'):
        LoadInstanceMap()(sample)


@pytest.mark.parametrize(
    'name, count', [('mask-rcnn_ravlt-nano_nuclei', 28), ('segformer_mit-b0_nuclei', 28)]
)
def test_the_images_in_the_repository(root, monkeypatch, name, count):
    monkeypatch.chdir(root)
    cfg = Config.fromfile(root / 'configs/nuclei' / f'{name}.py')
    init_default_scope(cfg.default_scope)
    train = DATASETS.build(cfg.train_dataloader.dataset)
    val = DATASETS.build(cfg.val_dataloader.dataset)
    assert (len(train), len(val)) == (count, 14)
    names = [{train.get_data_info(i)['img_path'] for i in range(28)}]
    names += [{val.get_data_info(i)['img_path'] for i in range(14)}]
    assert not names[0] & names[1]
    sample = train[0]
    assert sample['inputs'].shape[0] == 3 and max(sample['inputs'].shape[1:]) <= 256


def test_doubled_images_are_scored_at_their_own_size(root, monkeypatch):
    monkeypatch.chdir(root)
    cfg = Config.fromfile(root / 'configs/nuclei/semantic-fpn_ravlt-nano-linear_nuclei.py')
    init_default_scope(cfg.default_scope)
    sample = DATASETS.build(cfg.val_dataloader.dataset)[0]
    truth = sample['data_samples'].gt_sem_seg.data
    assert [*sample['inputs'].shape[1:]] == [2 * side for side in truth.shape[1:]]
    train = DATASETS.build(cfg.train_dataloader.dataset)
    for i in range(4):
        sample = train[i]
        assert sample['inputs'].shape[1:] == sample['data_samples'].gt_sem_seg.data.shape[1:]


def test_mmsegmentation_predicts_an_image_without_masks(root):
    """Its inferencers leave out LoadAnnotations by name, not this transform."""
    from mmseg.apis import inference_model

    name = 'semantic-fpn_ravlt-nano-linear_nuclei'
    predictor = load(name, f'mmlinattn://{name}')
    image = str(next((root / 'demo/nuclei/images').iterdir()))
    found = inference_model(predictor.model, image).pred_sem_seg.data
    assert torch.equal(found, predictor.predict(cv2.imread(image)).sample.pred_sem_seg.data)


def test_draws_in_proportion_to_the_area(tmp_path, monkeypatch):
    sizes = [(4, 4), (8, 4), (8, 8)]
    images = [dict(id=i, file_name='a.jpg', height=h, width=w) for i, (h, w) in enumerate(sizes)]
    path = tmp_path / 'a.json'
    path.write_text(json.dumps(dict(images=images, annotations=[], categories=[])))
    data = InstanceMaps(str(path))
    alone = [*islice(AreaSampler(data, seed=0), 7000)]
    expected = 7000 * np.array([1, 2, 4]) / 7
    assert (abs(np.bincount(alone) - expected) < 4 * expected**0.5).all()
    resumed = AreaSampler(data, seed=0)
    resumed.indices = islice(resumed._indices_of_rank(), 5, None)
    assert [*islice(resumed, 5)] == alone[5:10]
    for rank in range(2):  # the processes share the draws
        monkeypatch.setattr('mmengine.dataset.sampler.get_dist_info', lambda rank=rank: (rank, 2))
        assert [*islice(AreaSampler(data, seed=0), 3500)] == alone[rank::2]
    data.get_data_info = lambda i: dict(img_path='b.jpg', width=4)
    with pytest.raises(ValueError, match='b.jpg has no height and width'):
        AreaSampler(data, seed=0)
