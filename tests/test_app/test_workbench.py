"""What the controls of the page do, and the models that it is started with."""

import threading
import time

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.structures import BaseDataElement, InstanceData, PixelData
from PIL import Image

from mmlinattn.apis import Prediction, coco_categories
from mmlinattn.app import Workbench, load_models, package_models
from mmlinattn.app import workbench as module
from mmlinattn.app.workbench import enlargement, read_image, table_of
from mmlinattn.datasets.audit.images import TooManyPixels
from mmlinattn.datasets.shapes.draw import draw_image

IMAGE = np.random.default_rng(0).integers(0, 255, (64, 96, 3), np.uint8)


@pytest.mark.parametrize('name', ['seg', 'det', 'cls'])
def test_predict_and_explain(predictor, name):
    bench = Workbench({name: predictor(name)})
    factor = enlargement(IMAGE)
    assert factor == 5
    assert bench.heads(name, None) == 1 and bench.heads(name, bench.views(name)[-1]) > 1
    drawn, text, table = bench.predict(name, IMAGE, 0.0)
    assert drawn.shape == (factor * 64, factor * 96, 3) and drawn.dtype == np.uint8
    assert text.startswith('**') and ' ms** on cpu for 96 x 64 pixels' in text
    assert table.rows and all(len(row) == len(table.heads) for row in table.rows)
    assert {row[0] for row in table.rows} <= {*predictor(name).classes}
    for title in bench.views(name):
        assert bench.explain(name, IMAGE, title, (3, 4)).picture.shape == drawn.shape
    with pytest.raises(ValueError, match=f"model '{name}' has no layer 'none'"):
        bench.explain(name, IMAGE, 'none', (0, 0))


def test_reconstruction_has_no_table(predictor):
    bench = Workbench(dict(a=predictor('vqgan')))
    drawn, text, table = bench.predict('a', IMAGE, 0.3)
    assert drawn.shape == (8 * 64, 2 * 8 * 64, 3) and text.endswith('reconstruction')
    assert bench.predict('a', np.zeros((600, 800, 3), np.uint8), 0.3)[0].shape == drawn.shape
    assert table.rows == table.heads == []
    titles = bench.views('a')
    assert titles
    for title in titles:
        assert bench.explain('a', IMAGE, title, (3, 4)).picture.shape == (5 * 64, 5 * 96, 3)


def test_what_is_drawn_is_of_the_picture(predictor):
    """RGB in, RGB out; as the predictor says, enlarged."""
    classifier = predictor('cls')
    red = np.zeros((64, 64, 3), np.uint8)
    red[..., 0] = 255
    drawn, *_ = Workbench(dict(a=classifier)).predict('a', red, 0.3)
    assert drawn[-1, -1].tolist() == [255, 0, 0]


RED, GREEN, BLUE = [200, 0, 0], [0, 200, 0], [0, 0, 200]


def of(shape, **content):
    categories = coco_categories('xyz', [RED, GREEN, BLUE])
    image = np.zeros((*shape, 3), np.uint8)
    return Prediction(BaseDataElement(**content), 0.1, image, '', categories, 0.5)


def test_tables():
    labels = torch.tensor([[2, 0, 2], [0, 2, 2]])[None]
    assert table_of(of((2, 3), pred_sem_seg=PixelData(data=labels))) == (
        ['class', '% of pixels'], [['z', 66.7], ['x', 33.3]], [BLUE, RED],
    )  # fmt: skip
    found = InstanceData(
        bboxes=torch.tensor([[2.0, 1.0, 5.0, 3.0], [0.0, 0.0, 9.0, 1.0], [0.0, 0.0, 1.0, 1.0]]),
        scores=torch.tensor([0.6, 0.9, 0.2]),
        labels=torch.tensor([1, 0, 0]),
    )
    assert table_of(of((4, 9), pred_instances=found)) == (
        ['class', 'score', 'corner, size'],
        [['x', '0.900', '0 0, 9 x 1'], ['y', '0.600', '2 1, 3 x 2']],
        [RED, GREEN],
    )
    assert table_of(of((4, 9), pred_instances=found[:0])).rows == []
    assert table_of(of((4, 9), pred_score=torch.tensor([0.2, 0.7, 0.1]))) == (
        ['class', 'score'], [['y', '0.700'], ['x', '0.200'], ['z', '0.100']], [GREEN, RED, BLUE],
    )  # fmt: skip


def test_another_head_needs_no_prediction(predictor, monkeypatch):
    segmentor = predictor('seg')
    bench = Workbench(dict(seg=segmentor))
    title = bench.views('seg')[-1]
    calls, predict = [], segmentor.predict
    monkeypatch.setattr(segmentor, 'predict', lambda *a, **k: calls.append(1) or predict(*a, **k))
    mean, one = (bench.explain('seg', IMAGE, title, (3, 4), head=head) for head in (None, 0))
    bench.explain('seg', IMAGE, title, (3, 4), opacity=0.1)
    assert len(calls) == 1 and (mean.picture != one.picture).any()
    for image, pixel in ((IMAGE, (4, 4)), (IMAGE[::-1].copy(), (4, 4))):
        found = bench.explain('seg', image, title, pixel, head=0)
        fresh = Workbench(dict(seg=segmentor)).explain('seg', image, title, pixel, head=0)
        np.testing.assert_array_equal(found.picture, fresh.picture)
    assert len(calls) == 5


def test_one_at_a_time():
    """Two threads would share MMEngine's scope and the hooks of a view."""

    class Slow:
        task, device, model = 'classification', 'cpu', torch.nn.Linear(1, 1)
        inside = overlaps = 0

        def predict(self, image, min_score):
            Slow.inside += 1
            Slow.overlaps += Slow.inside > 1
            time.sleep(0.02)
            Slow.inside -= 1
            return of(image.shape[:2], pred_score=torch.ones(3))

    bench = Workbench(dict(a=Slow()))
    threads = [threading.Thread(target=bench.predict, args=('a', IMAGE, 0.3)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not Slow.overlaps


class CheapPredictor:
    def predict(self, image):
        pass


def test_models_by_name(files, monkeypatch):
    config, checkpoint = files('cls')
    assert [*load_models([(config, checkpoint)])] == ['ravlt-nano_shapes']
    made = []
    monkeypatch.setattr(module, 'load', lambda *given: made.append(given) or CheapPredictor())
    files = [('a/x.py', '1.pth'), ('x.py', '2.pth'), ('y.py', '3.pth')]
    names = [*load_models(files, 'cuda')]
    assert names == module.model_names(files) == ['x, 1.pth', 'x, 2.pth', 'y']
    assert made[1] == ('x.py', '2.pth', 'cuda')
    with pytest.raises(ValueError, match='models is empty'):
        Workbench({})


def test_the_models_of_the_package(monkeypatch):
    """Those whose framework is there; they find something in a picture of their own kind."""
    detector, segmentor = 'faster-rcnn_ravlt-nano-linear_bccd', 'semantic-fpn_ravlt-nano_shapes'
    address = 'mmlinattn://{}'.format
    frameworks = {'mmdet', 'mmseg'}
    monkeypatch.setattr(module, 'find_spec', lambda name: name in frameworks)
    assert package_models() == [(name, address(name)) for name in (detector, segmentor)]
    frameworks = {'mmseg'}
    monkeypatch.setattr(Config, 'fromfile', None)  # a config needs its framework to be read
    assert package_models() == [(segmentor, address(segmentor))]
    frameworks = {'mmpretrain'}
    with pytest.raises(ModuleNotFoundError, match='need one of mmdet, mmseg'):
        package_models()
    monkeypatch.undo()
    (predictor,) = load_models([(segmentor, address(segmentor))]).values()
    drawn = draw_image(np.random.default_rng(0), 128)
    found = predictor.predict(drawn.image[..., ::-1]).segmentation
    assert (found == drawn.semantic).mean() > 0.9 and len(np.unique(drawn.semantic)) > 1


def image_file(path, size, mode='RGB', **options):
    Image.new(mode, size, **options).save(path)
    return path


def test_an_image_with_too_many_pixels_is_not_decoded(tmp_path):
    """The header says it: there are no pixels behind this one."""
    whole = image_file(tmp_path / 'a.png', (4000, 3000), '1').read_bytes()
    (tmp_path / 'b.png').write_bytes(whole[: whole.index(b'IDAT') + 4])
    said = 'image b.png has 4000 x 3000 = 12.0 megapixels, the limit is 11.9: use a smaller image'
    with pytest.raises(TooManyPixels, match=said):
        read_image(tmp_path / 'b.png', 11.9)
    assert read_image(tmp_path / 'a.png', 12).shape == (3000, 4000, 3)


def test_images_are_read_upright_and_in_rgb(tmp_path):
    picture = Image.new('RGB', (6, 4), (255, 0, 0))
    exif = picture.getexif()
    exif[274] = 6  # turned by a quarter
    picture.save(tmp_path / 'a.jpg', exif=exif)
    read = read_image(tmp_path / 'a.jpg')
    assert read.shape == (6, 4, 3) and read.dtype == np.uint8 and read[0, 0, 0] > 240
    for mode in ('1', 'L', 'LA', 'P', 'RGBA', 'I;16'):
        assert read_image(image_file(tmp_path / 'b.png', (5, 3), mode)).shape == (3, 5, 3)


@pytest.mark.parametrize('content', [b'', b'no picture', b'\x89PNG\r\n\x1a\n', None])
def test_an_image_that_cannot_be_read(tmp_path, content):
    path = image_file(tmp_path / 'a.png', (300, 300))
    path.write_bytes(path.read_bytes()[:-200] if content is None else content)
    with pytest.raises(OSError, match='^image a.png cannot be read .* damaged, or of a format'):
        read_image(path)


def test_close_ends_a_running_prediction():
    """At the next layer, however many there are."""
    began, errors = threading.Event(), []

    class Endless:
        task, classes, model = 'classification', ('x',), torch.nn.Linear(1, 1)

        def predict(self, image, min_score):
            while True:
                self.model(torch.ones(1))
                began.set()

    bench = Workbench(dict(a=Endless()))

    def predict():
        try:
            bench.predict('a', IMAGE, 0.3)
        except RuntimeError as error:
            errors.append(str(error))

    thread = threading.Thread(target=predict, daemon=True)
    thread.start()
    assert began.wait(60)
    bench.close()
    thread.join(60)
    assert errors == ['the page is closed']
