"""Predictors of all tasks: what they take, what they predict with, and which ids they give."""

import json
import math

import cv2
import numpy as np
import pytest
import torch
from mmcv.transforms import LoadImageFromFile
from mmengine.config import Config
from mmengine.registry import TRANSFORMS
from PIL import Image
from torchvision.ops import batched_nms

from mmlinattn.apis import ImageError, Prediction, load
from mmlinattn.apis.coco import category_ids
from mmlinattn.apis.predictor import Predictor, palette_of
from mmlinattn.engine.config import load_config
from tests.test_deployment.stub import description, write_stub

IMAGE = np.random.default_rng(0).integers(0, 255, (64, 96, 3), np.uint8)


def scores_of(prediction):
    return prediction.sample.pred_score


def test_what_can_be_predicted(files, tmp_path):
    """A path, an array in BGR, an upright PIL image; lists, folders, and lists of both."""
    predictor = load(*files('cls'))
    path = tmp_path / 'in' / 'a.png'
    path.parent.mkdir()
    cv2.imwrite(str(path), IMAGE)
    expected = predictor(IMAGE)
    assert isinstance(expected, Prediction) and expected.name == ''
    turned = Image.fromarray(np.ascontiguousarray(np.rot90(IMAGE[..., ::-1])))
    turned.getexif()[274] = 6  # to be turned by a quarter, clockwise
    for source in (path, str(path), Image.open(path), turned):
        found = predictor(source)
        assert torch.equal(scores_of(found), scores_of(expected)), source
        np.testing.assert_array_equal(found.image, IMAGE)
    assert predictor(path).name == 'a.png'
    grey = predictor(Image.open(path).convert('L')).image
    assert (grey[..., 0] == grey[..., 2]).all()
    assert [one.name for one in predictor(path.parent)] == ['a.png']
    assert [one.name for one in predictor([IMAGE, path, path.parent])] == ['', 'a.png', 'a.png']
    assert predictor([]) == []
    assert next(predictor.stream([path, 'nowhere.jpg'])).name == 'a.png'


@pytest.mark.parametrize(
    'source, error, message',
    [
        ('nowhere.jpg', FileNotFoundError, "source 'nowhere.jpg' does not exist"),
        (IMAGE[..., 0], ValueError, r'must be \(H, W, 3\) uint8 in BGR, got \(64, 96\) uint8'),
        (IMAGE / 255, ValueError, r'got \(64, 96, 3\) float64'),
        (IMAGE[:0], ValueError, r'got \(0, 96, 3\) uint8'),
        (None, ValueError, 'a path, an array, a PIL image or a list of these, got NoneType'),
        (Image.new('F', (8, 8)), ValueError, "mode 'F' must have values of 16 bits: scale them"),
    ],
)
def test_what_cannot_be_predicted(predictor, source, error, message):
    with pytest.raises(error, match=message):
        predictor('cls')(source)


def test_an_array_is_expected(predictor):
    with pytest.raises(ValueError, match=r'must be an array, got str: predictor\(source\) takes'):
        predictor('cls').predict('a.jpg')


@pytest.mark.parametrize('mode', ['I;16', 'I'])
def test_16_bits_are_read_as_those_of_a_file(predictor, tmp_path, mode):
    values = np.arange(64 * 64, dtype=np.uint16).reshape(64, 64) * 16
    Image.fromarray(values).save(tmp_path / 'a.png')
    image = Image.open(tmp_path / 'a.png') if mode == 'I;16' else Image.fromarray(np.int32(values))
    assert image.mode == mode
    by_path, direct = predictor('cls')([tmp_path / 'a.png', image])
    np.testing.assert_array_equal(direct.image, by_path.image)
    assert direct.image[..., 0].tolist() == (values // 256).tolist()
    Image.fromarray(values // 64).save(tmp_path / 'dark.png')
    for source in (tmp_path / 'dark.png', Image.fromarray(np.int32(values // 64))):
        with pytest.raises(ValueError, match='its 16-bit values end at 1023, black in 8 bits'):
            predictor('cls')(source)


@TRANSFORMS.register_module()
class LoadInverted(LoadImageFromFile):
    def transform(self, results):
        results = super().transform(results)
        results['img'] = 255 - results['img']
        return results


FIRST = 'test_dataloader.dataset.pipeline.0.'


@pytest.mark.parametrize(
    'options, as_loaded',
    [
        (dict(type='LoadInverted'), lambda image: 255 - image),
        (dict(color_type='color_ignore_orientation'), lambda image: image),
        (dict(color_type='unchanged', to_float32=True), lambda image: image.astype(np.float32)),
    ],
)
def test_files_are_read_by_the_test_pipeline(files, predictor, tmp_path, options, as_loaded):
    """Both an own step and options of the framework's; the file asks to be turned."""
    exif = Image.Exif()
    exif[274] = 6
    Image.fromarray(IMAGE[..., ::-1]).save(tmp_path / 'a.png', exif=exif)
    changed = load(*files('cls'), cfg_options={f'{FIRST}{k}': v for k, v in options.items()})
    found = changed(tmp_path / 'a.png')
    expected = as_loaded(IMAGE if 'color_type' in options else np.rot90(IMAGE, -1))
    assert torch.equal(scores_of(found), scores_of(changed(expected)))
    assert not torch.equal(scores_of(found), scores_of(predictor('cls')(tmp_path / 'a.png')))
    np.testing.assert_array_equal(found.image, expected)
    with pytest.raises(ValueError, match='must be a path, an array or a list of these'):
        changed(Image.open(tmp_path / 'a.png'))
    with pytest.raises(ImageError, match='megapixels are more than the limit of 0.001'):
        changed.read(tmp_path / 'a.png', max_megapixels=0.001)
    (tmp_path / 'b.png').write_bytes(b'no image')
    with pytest.raises(ImageError, match='b.png cannot be read'):
        changed(tmp_path / 'b.png')


def test_16_bits_are_read_by_a_step_that_keeps_them(files, tmp_path):
    dark = np.arange(64 * 96, dtype=np.uint16).reshape(64, 96) % 200
    cv2.imwrite(str(tmp_path / 'a.png'), dark)
    changed = load(*files('cls'), cfg_options={f'{FIRST}color_type': 'unchanged'})
    np.testing.assert_array_equal(changed.read(tmp_path / 'a.png'), dark)
    in_8_bits = load(*files('cls'))
    for name, image in (('a', dark), ('colours', np.stack([dark, 0 * dark, 0 * dark], -1))):
        cv2.imwrite(str(tmp_path / f'{name}.png'), image)
        with pytest.raises(ImageError, match='16-bit values end at 199'):
            in_8_bits.read(tmp_path / f'{name}.png')
    cv2.imwrite(str(tmp_path / 'bright.png'), 300 * np.stack([dark] * 3, -1))
    assert in_8_bits.read(tmp_path / 'bright.png').shape == (64, 96, 3)


def test_another_dtype_takes_images_in_memory_too(files, tmp_path):
    changed = load(*files('cls'), cfg_options={f'{FIRST}to_float32': True})
    cv2.imwrite(str(tmp_path / 'a.png'), IMAGE)
    assert changed.read(tmp_path / 'a.png').dtype == np.float32
    by_path, direct = changed([tmp_path / 'a.png', Image.fromarray(IMAGE[..., ::-1])])
    torch.testing.assert_close(scores_of(by_path), scores_of(direct))


def test_one_channel(files, tmp_path):
    path = tmp_path / 'a.png'
    cv2.imwrite(str(path), IMAGE)
    grey = load(*files('cls'), cfg_options={f'{FIRST}color_type': 'grayscale'})
    pixels = grey.read(path)
    assert pixels.shape[:2] == IMAGE.shape[:2] and pixels.size == IMAGE[..., 0].size
    grey.network = OneChannel()
    assert scores_of(grey(path)).shape == (5,)
    drawn = grey(path)
    assert (drawn.image == pixels.reshape(64, 96, 1)).all() and drawn.plot().shape[2] == 3


class OneChannel(torch.nn.Module):
    """Stand-in for a classifier of images with one channel."""

    def test_step(self, batch):
        assert [x.shape[0] for x in batch['inputs']] == [1]
        return [sample.set_pred_score(torch.ones(5) / 5) for sample in batch['data_samples']]


@pytest.mark.parametrize('task', ['cls', 'seg', 'det'])
def test_exported_file_predicts(files, tmp_path, task):
    pytest.importorskip('onnx', reason='it comes with the extra "export"')
    pytest.importorskip('onnxruntime', reason='it comes with the extra "export"')
    names = dict(cls='classification', seg='segmentation', det='detection')
    classes = [f'own {i}' for i in range(6 if task == 'seg' else 5)]
    about = description(names[task], len(classes), classes=classes)
    file = write_stub(tmp_path / 'a.onnx', names[task], about, len(classes))
    predictor = load(files(task)[0], file)
    assert predictor.task == names[task] and [*predictor.classes] == classes
    assert predictor(IMAGE).names[0] == 'own 1'  # as stub.py writes
    with pytest.raises(ValueError, match='tta needs a checkpoint, got the exported file'):
        load(files(task)[0], file, tta=True)
    with pytest.raises(ValueError, match="device must be cpu, cuda, .* got 'gpu'"):
        load(files(task)[0], file, device='gpu')
    with pytest.raises(ValueError, match="cfg must be a Config, got 'a.py': apis.load takes"):
        Predictor('a.py', file)


def test_flips_are_averaged(files, predictor):
    """By hand: the mean of the softmax of the image and of its mirror image."""
    mirrored = np.ascontiguousarray(IMAGE[:, ::-1])
    augmented = load(*files('cls'), tta=True)
    assert augmented.notes == [
        'test-time augmentation (default: a horizontal flip), merged by AverageClsScoreTTA'
    ]
    one, other = (scores_of(predictor('cls')(image)) for image in (IMAGE, mirrored))
    torch.testing.assert_close(scores_of(augmented(IMAGE)), (one + other) / 2)
    one, other = (
        predictor('seg')(image).sample.seg_logits.data.softmax(0) for image in (IMAGE, mirrored)
    )
    expected = (one + other.flip(-1)).argmax(0).numpy()
    found = load(*files('seg'), tta=True)(IMAGE)
    np.testing.assert_array_equal(found.segmentation, expected)
    assert found.plot().shape == IMAGE.shape


def test_boxes_of_flips_are_merged(files):
    """The boxes of both views, mirrored back, after suppression for each class."""
    config, checkpoint = files('smca')
    augmented, predictor = load(config, checkpoint, tta=True), load(config, checkpoint)
    assert 'merged by DetTTAModel' in augmented.notes[0]
    own, mirrored = (
        predictor(np.ascontiguousarray(image)).sample.pred_instances
        for image in (IMAGE, IMAGE[:, ::-1])
    )
    x1, y1, x2, y2 = mirrored.bboxes.unbind(-1)
    boxes = torch.cat([own.bboxes, torch.stack([96 - x2, y1, 96 - x1, y2], -1)])
    scores, labels = (torch.cat([own[name], mirrored[name]]) for name in ('scores', 'labels'))
    kept = batched_nms(boxes, scores, labels, 0.5)[:100]
    merged = augmented(IMAGE).sample.pred_instances
    assert 5 < len(kept) == len(merged)
    torch.testing.assert_close(merged.scores, scores[kept], atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(merged.bboxes, boxes[kept], atol=0.1, rtol=1e-2)


def test_augmentation_of_the_config(files, predictor):
    """Its own sizes, without the annotations that it loads for scoring."""
    steps = [
        dict(type='LoadImageFromFile'),
        dict(
            type='TestTimeAug',
            transforms=[
                [dict(type='Resize', scale_factor=f, keep_ratio=True) for f in (1.0, 1.5)],
                [dict(type='LoadAnnotations')],
                [dict(type='PackSegInputs')],
            ],
        ),
    ]
    augmented = load(*files('seg'), tta=True, cfg_options=dict(tta_pipeline=steps))
    assert '(tta_pipeline of the config), merged by SegTTAModel' in augmented.notes[0]
    assert augmented(IMAGE).segmentation.shape == IMAGE.shape[:2]


@pytest.fixture
def ids(root, tmp_path):
    """ids(classes, categories) -> what category_ids says of an annotation file of these."""
    cfg = load_config(str(root / 'configs/quickstart/mask-rcnn_ravlt-nano_shapes.py'))

    def make(classes, *categories, text=None):
        dataset = cfg.test_dataloader.dataset
        dataset.data_root, dataset.ann_file = str(tmp_path), 'a.json'
        content = dict(categories=[dict(id=i, name=name) for i, name in categories])
        if categories or text:
            (tmp_path / 'a.json').write_text(text or json.dumps(content))
        return category_ids(cfg, classes)

    return make


def test_category_ids_are_those_of_the_data(ids, tmp_path):
    path = tmp_path / 'a.json'
    assert ids(['a', 'b']) == ([1, 2], f'{path} does not exist')
    assert ids(['a', 'b'], (7, 'b'), (3, 'c'), (90, 'a')) == ([90, 7], '')
    assert ids(['a', 'b'], (7, 'b')) == ([1, 2], f"{path} has no category 'a'")
    assert ids(['a'], text='[]')[1].startswith(f'{path} has no categories (TypeError: ')
    assert ids(['a'], text='{')[1].startswith(f'{path} has no categories (JSONDecodeError: ')


def test_classes_of_coco_have_its_ids_without_its_file(ids):
    from mmdet.datasets import CocoDataset

    classes = CocoDataset.METAINFO['classes']
    found, reason = ids(classes)
    assert reason == '' and len(found) == 80 and found[:12] == [*range(1, 12), 13]
    assert found[classes.index('toothbrush')] == 90
    assert ids(classes[:2])[0] == [1, 2] and 'does not exist' in ids(classes[:2])[1]


def test_images_of_one_size_go_through_the_model_at_once(files, monkeypatch):
    """Successive ones alone, and with the results of each by itself."""
    predictor, sizes = load(*files('smca')), []
    step = predictor.model.test_step

    def counted(batch):
        sizes.append(len(batch['inputs']))
        return step(batch)

    monkeypatch.setattr(predictor.model, 'test_step', counted)
    images = [IMAGE, IMAGE[::-1].copy(), IMAGE[:40].copy(), IMAGE]
    together = predictor(images, min_score=0, batch_size=4)
    alone = predictor(images, min_score=0)
    assert sizes == [2, 1, 1, 1, 1, 1, 1]
    for one, other in zip(alone, together):
        np.testing.assert_allclose(one.boxes, other.boxes, rtol=0, atol=1e-2)
        np.testing.assert_allclose(one.scores, other.scores, rtol=1e-4)


def test_model_without_a_head(files):
    with pytest.raises(ValueError, match='ViTVQGAN has no head of boxes, labels or classes'):
        load(*files('vqgan'))


def test_scores_out_of_range(files):
    """As the command line refuses them."""
    predictor = load(*files('cls'))
    for score in (2, -0.1, math.nan):
        with pytest.raises(ValueError, match='min_score must be'):
            predictor(IMAGE, min_score=score)


def test_every_class_has_its_own_colour():
    cfg = Config(dict(default_scope='mmseg'))
    assert palette_of({}, cfg, 2) == [(210, 37, 37), (37, 210, 210)]
    assert len(set(palette_of({}, cfg, 255))) == 255
