"""Prediction of files that belong to no data set, by models of all three frameworks."""

import json
import sys
from dataclasses import replace

import cv2
import numpy as np
import pytest
import torch
from mmengine.registry import MODELS
from mmengine.structures import BaseDataElement, InstanceData, PixelData
from PIL import Image
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO

from mmlinattn import __main__ as program
from mmlinattn.apis import FrameError, Predictor, coco_categories, coco_json, open_sources
from mmlinattn.engine.config import load_config
from tests.test_tools.conftest import CONFIGS

SHAPES = ('circle', 'square', 'triangle', 'star', 'cross')


@pytest.fixture(scope='module')
def pictures(tmp_path_factory):
    folder = tmp_path_factory.mktemp('pictures')
    draw = np.random.default_rng(0)
    (folder / 'below').mkdir()
    for name, size in (('a.jpg', (64, 96)), ('below/b.png', (70, 64))):
        cv2.imwrite(str(folder / name), draw.integers(0, 255, (*size, 3), np.uint8))
    (folder / 'notes.txt').write_text('no picture')
    video = cv2.VideoWriter(str(folder / 'clip.mp4'), cv2.VideoWriter_fourcc(*'mp4v'), 10, (96, 64))
    for _ in range(5):
        video.write(draw.integers(0, 255, (64, 96, 3), np.uint8))
    video.release()
    return folder


@pytest.fixture(scope='module')
def checkpoint(root, tmp_path_factory):
    """checkpoint(task) -> config and file of a model with random weights, sure of everything."""
    folder = tmp_path_factory.mktemp('weights')

    def make(task):
        cfg = load_config(str(root / CONFIGS[task]))
        path = folder / f'{task}.pth'
        if not path.exists():
            torch.manual_seed(0)
            model = MODELS.build(cfg.model)
            model.init_weights()
            meta = dict(dataset_meta=dict(classes=SHAPES)) if task == 'cls' else {}
            torch.save(dict(state_dict=model.state_dict(), meta=meta), path)
        return str(root / CONFIGS[task]), str(path)

    return make


def predict(capsys, monkeypatch, *argv):
    monkeypatch.setattr(sys, 'argv', ['mmlinattn'])
    code = program.main(['predict', *map(str, argv)])
    return code, capsys.readouterr()


def of_coco(path):
    content = json.loads(path.read_text())
    coco = COCO()
    coco.dataset = content
    coco.createIndex()
    return content, coco


@pytest.mark.parametrize('task', CONFIGS)
def test_a_folder_and_a_video(task, checkpoint, pictures, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv('COLUMNS', '200')
    config, weights = checkpoint(task)
    code, said = predict(
        capsys, monkeypatch, config, weights, pictures, pictures / 'clip.mp4',
        '--out', tmp_path, '--min-score', 0.1, '--max-frames', 3,
    )  # fmt: skip
    assert code == 0 and '5 images' in said.out
    assert f'files of {pictures.name} that are no images: 1 x .mp4, 1 x .txt' in said.out
    content, coco = of_coco(tmp_path / 'predictions.json')
    names = ['a.jpg', 'below/b.png', *(f'clip#{i:06d}' for i in range(3))]
    assert [image['file_name'] for image in content['images']] == names
    assert (content['images'][0]['height'], content['images'][0]['width']) == (64, 96)
    assert {c['name'] for c in content['categories']} >= set(SHAPES)
    assert content['annotations']
    for name, size in (('a', (64, 96)), ('below/b', (70, 64))):
        assert cv2.imread(str(tmp_path / 'vis' / f'{name}.png')).shape[:2] == size
    clip = cv2.VideoCapture(str(tmp_path / 'vis' / 'clip.mp4'))
    assert clip.get(cv2.CAP_PROP_FRAME_COUNT) == 3 and clip.get(cv2.CAP_PROP_FPS) == 10
    for annotation in content['annotations']:
        if task == 'cls':
            assert 0 <= annotation['score'] <= 1 and 'bbox' not in annotation
        else:
            image = content['images'][annotation['image_id'] - 1]
            assert coco.annToMask(annotation).shape == (image['height'], image['width'])
    if task == 'seg':
        check_labels(tmp_path, content)
    else:
        assert {path.name for path in tmp_path.iterdir()} == {'predictions.json', 'vis'}


def check_labels(folder, content):
    """Indexed PNGs of the images, not of the video, with the regions of the COCO file."""
    legend = json.loads((folder / 'legend.json').read_text())
    assert [entry['index'] for entry in legend] == [0, 1, 2, 3, 4, 5]
    assert [(e['category_id'], e['name'], e['color']) for e in legend] == [
        (c['id'], c['name'], c['color']) for c in content['categories']
    ]
    found = {path.relative_to(folder).as_posix() for path in folder.glob('labels/**/*.png')}
    assert found == {'labels/a.png', 'labels/below/b.png'}
    labels = np.asarray(Image.open(folder / 'labels/a.png'))
    of_first = [one for one in content['annotations'] if one['image_id'] == 1]
    index = {entry['category_id']: entry['index'] for entry in legend}
    assert {index[one['category_id']]: one['area'] for one in of_first} == {
        value: (labels == value).sum() for value in np.unique(labels)
    }


def test_names_that_differ_only_in_suffix(checkpoint, pictures, tmp_path, capsys, monkeypatch):
    folder = tmp_path / 'in'
    folder.mkdir()
    for name in ('x.jpg', 'x.png', 'x.jpg.jpg', 'y.jpg'):
        (folder / name).write_bytes((pictures / 'a.jpg').read_bytes())
    config, weights = checkpoint('cls')
    assert predict(capsys, monkeypatch, config, weights, folder, '--out', tmp_path / 'out')[0] == 0
    found = sorted(path.name for path in (tmp_path / 'out' / 'vis').iterdir())
    assert found == ['x.jpg.jpg.png', 'x.jpg.png', 'x.png.png', 'y.png']


def test_notes_are_printed(checkpoint, pictures, tmp_path, capsys, monkeypatch):
    config, weights = checkpoint('cls')
    out = ('--out', tmp_path, '--tta')
    code, said = predict(capsys, monkeypatch, config, weights, pictures / 'a.jpg', *out)
    assert code == 0 and said.out.startswith('test-time augmentation: 2 views (default: ')
    config, weights = checkpoint('det')
    code, said = predict(capsys, monkeypatch, config, weights, pictures / 'a.jpg', *out[:2],
                         '--cfg-options', 'test_dataloader.dataset.ann_file=none.json')  # fmt: skip
    assert code == 0 and said.out.startswith('category ids are counted from 1: ')
    assert 'none.json does not exist' in said.out


@pytest.mark.parametrize('task', CONFIGS)
def test_as_the_frameworks_predict(task, checkpoint, pictures):
    config, weights = checkpoint(task)
    cfg = load_config(config)
    predictor = Predictor(cfg, weights)
    image = cv2.imread(str(pictures / 'a.jpg'))
    sample = predictor.predict(image).sample
    path = str(pictures / 'a.jpg')
    if task == 'det':
        from mmdet.apis import inference_detector

        expected = inference_detector(predictor.model, path).pred_instances
        assert len(expected)
        for name in ('bboxes', 'scores', 'labels', 'masks'):
            assert torch.equal(sample.pred_instances[name], expected[name])
    elif task == 'seg':
        from mmseg.apis import inference_model

        expected = inference_model(predictor.model, path).pred_sem_seg.data
        assert torch.equal(sample.pred_sem_seg.data, expected)
    else:
        from mmpretrain.apis import ImageClassificationInferencer

        predictor.model._config = cfg
        inferencer = ImageClassificationInferencer(predictor.model, classes=list(SHAPES))
        (expected,) = inferencer(path)
        np.testing.assert_allclose(sample.pred_score.numpy(), expected['pred_scores'], rtol=1e-5)


def test_a_damaged_image_is_named_and_the_rest_goes_on(
    checkpoint, pictures, tmp_path, capsys, monkeypatch
):
    monkeypatch.setenv('COLUMNS', '300')
    folder = tmp_path / 'in'
    folder.mkdir()
    (folder / 'a.jpg').write_bytes(b'no image')
    whole = (pictures / 'a.jpg').read_bytes()
    (folder / 'b.jpg').write_bytes(whole)
    (folder / 'c.jpg').write_bytes(whole[: len(whole) // 2])  # OpenCV fills the rest with grey
    config, weights = checkpoint('cls')
    video = tmp_path / 'cut.avi'
    writer = cv2.VideoWriter(str(video), cv2.VideoWriter_fourcc(*'MJPG'), 10, (96, 64))
    writer.write(np.zeros((64, 96, 3), np.uint8))
    writer.release()
    whole = video.read_bytes()
    video.write_bytes(whole[: whole.index(b'movi') + 4])  # opens, and has no frame
    out = ('--out', tmp_path / 'out', '--no-pictures')
    code, said = predict(capsys, monkeypatch, config, weights, folder, video, *out)
    assert code == 1 and 'video cut has no frame that can be read' in said.out
    assert all(f'image {folder / name} cannot be read' in said.out for name in ('a.jpg', 'c.jpg'))
    assert '3 image(s) or video(s)' in said.err
    content, _ = of_coco(tmp_path / 'out' / 'predictions.json')
    assert [image['file_name'] for image in content['images']] == ['b.jpg']
    assert [path.name for path in (tmp_path / 'out').iterdir()] == ['predictions.json']


def test_images_of_a_folder_at_once(root, pictures, tmp_path, capsys, monkeypatch):
    """The results of each alone; a damaged image and one that fails do not stop the others."""
    monkeypatch.setenv('COLUMNS', '300')
    config = str(root / 'configs/smca/smca-ripple_nano_shapes.py')
    torch.manual_seed(0)
    model = MODELS.build(load_config(config).model)
    model.init_weights()
    torch.save(dict(state_dict=model.state_dict(), meta={}), tmp_path / 'smca.pth')
    folder = tmp_path / 'in'
    folder.mkdir()
    for i, name in enumerate(('a.jpg', 'below/b.png', 'a.jpg', 'below/b.png')):
        image = cv2.imread(str(pictures / name))
        cv2.imwrite(str(folder / f'{i}.png'), image)
    (folder / '0_damaged.jpg').write_bytes(b'no image')
    sizes, original, found = [], Predictor.predict_batch, []

    def counted(self, images, names, min_score):
        sizes.append(len(images))
        if '3.png' in names and fails:
            raise RuntimeError('out of memory')
        return original(self, images, names, min_score)

    monkeypatch.setattr(Predictor, 'predict_batch', counted)
    for options, fails in (([], False), (['--batch-size', 3], False), (['--batch-size', 5], True)):
        out = ('--out', tmp_path / 'out', '--no-pictures', '--min-score', 0)
        weights = tmp_path / 'smca.pth'
        code, said = predict(capsys, monkeypatch, config, weights, folder, *out, *options)
        assert code == 1 and '0_damaged.jpg cannot be read' in said.out
        assert ('image 3.png: RuntimeError: out of memory' in said.out) == fails
        assert said.out.count('a batch failed, its images are predicted one by one') == fails
        found.append(of_coco(tmp_path / 'out' / 'predictions.json')[0])
    # One by one; two and two beside the damaged one; all four, which fail, then each.
    assert sizes == [1, 1, 1, 1, 2, 2, 4, 1, 1, 1, 1]
    alone, packed, failed = found
    assert alone['images'] == packed['images'] and len(failed['images']) == 3
    assert len(alone['annotations']) == len(packed['annotations']) > 0
    for one, other in zip(alone['annotations'], packed['annotations']):
        np.testing.assert_allclose(one['bbox'], other['bbox'], rtol=0, atol=1e-2)
        np.testing.assert_allclose(one['score'], other['score'], rtol=1e-4)


def test_a_model_that_takes_images_one_by_one_says_why(
    checkpoint, pictures, tmp_path, capsys, monkeypatch
):
    config, weights = checkpoint('cls')
    monkeypatch.setenv('COLUMNS', '300')
    options = ('--out', tmp_path, '--no-pictures', '--batch-size', 2)
    code, said = predict(capsys, monkeypatch, config, weights, pictures, *options)
    assert code == 0 and 'images are predicted one by one: RAVLT convolves maps' in said.out
    with pytest.raises(SystemExit):
        predict(capsys, monkeypatch, config, weights, pictures, '--batch-size', 0)
    assert '--batch-size must be positive, got 0' in capsys.readouterr().err


@pytest.mark.parametrize(
    'name, error, message',
    [
        ('nowhere.jpg', FileNotFoundError, "source 'nowhere.jpg' does not exist"),
        ('notes.txt', ValueError, 'neither an image .* nor a video'),
        ('empty', ValueError, 'a folder without images'),
        ('cut.mp4', ValueError, "video 'cut.mp4' cannot be opened"),
        ('99', FileNotFoundError, 'camera 99 does not exist'),
    ],
)
def test_sources_that_are_none(name, error, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'empty').mkdir()
    (tmp_path / 'notes.txt').write_text('x')
    (tmp_path / 'cut.mp4').write_bytes(b'\0' * 100)
    with pytest.raises(error, match=message):
        open_sources([name])


def test_frames_are_read_when_asked_for(pictures):
    (source,) = open_sources([str(pictures)])
    first, second = source
    assert (first.name, second.name) == ('a.jpg', 'below/b.png') and len(source) == 2
    assert first.read().shape == (64, 96, 3)
    with pytest.raises(FrameError, match='why not'):
        type(first)('x.jpg', None, 'why not').read()


@pytest.mark.parametrize('name', ['one.jpg', 'below/one.jpg', 'one.mp4'])
def test_no_result_takes_the_place_of_another(name, pictures, tmp_path):
    image = 'clip.mp4' if name.endswith('mp4') else 'a.jpg'
    for folder in ('x', 'y'):
        path = tmp_path / folder / name
        path.parent.mkdir(parents=True)
        path.write_bytes((pictures / image).read_bytes())
    sources = [str(tmp_path / folder / name) for folder in 'xy']
    if '/' in name:
        sources = [str(tmp_path / 'x'), str(tmp_path / 'y')]
    with pytest.raises(ValueError, match=f"x.* and .*y.* both have '{name}'"):
        open_sources(sources)


def test_coco_by_hand():
    mask = np.zeros((1, 4, 6), bool)
    mask[0, 1:3, 2:5] = True
    found = InstanceData(
        bboxes=torch.tensor([[2.0, 1.0, 5.0, 3.0], [0.0, 0.0, 1.0, 1.0]]),
        scores=torch.tensor([0.9, 0.2]),
        labels=torch.tensor([1, 0]),
        masks=torch.from_numpy(np.concatenate([mask, mask])),
    )
    objects = BaseDataElement(pred_instances=found)
    labels = torch.tensor([[0, 0, 2], [0, 2, 2]])[None]
    regions = BaseDataElement(pred_sem_seg=PixelData(data=labels))
    content = coco_json(
        [('a', (4, 6), objects), ('b', (2, 3), regions)], coco_categories('xyz'), min_score=0.5
    )
    one, *parts = content['annotations']
    assert (one['category_id'], one['bbox'], one['area']) == (2, [2, 1, 3, 2], 6)
    np.testing.assert_array_equal(coco_mask.decode(one['segmentation']), mask[0])
    assert [(p['image_id'], p['category_id'], p['area']) for p in parts] == [(2, 1, 3), (2, 3, 3)]
    np.testing.assert_array_equal(coco_mask.decode(parts[1]['segmentation']), labels[0] == 2)
    assert [c['id'] for c in content['categories']] == [1, 2, 3]


def test_what_is_drawn(checkpoint):
    config, weights = checkpoint('det')
    prediction = Predictor(load_config(config), weights)(np.zeros((40, 60, 3), np.uint8), 0.5)
    found = InstanceData(
        bboxes=torch.tensor([[10.0, 8.0, 50.0, 30.0]]), scores=torch.tensor([0.8]),
        labels=torch.tensor([0]),
    )  # fmt: skip
    drawn = replace(prediction, sample=BaseDataElement(pred_instances=found))
    red, green, blue = prediction.categories[0]['color']
    picture = drawn.plot()
    assert picture[30, 30].tolist() == [blue, green, red] and not picture[26, 30].any()
    assert not drawn.plot(0.9).any()
    large = drawn.plot(enlarge=4)
    assert large.shape == (160, 240, 3)
    assert large[120, 120].tolist() == [blue, green, red] and not large[110, 120].any()
    labels = torch.zeros(1, 40, 60, dtype=torch.int64)
    labels[0, 10:20, 30:40] = 1
    drawn = replace(prediction, sample=BaseDataElement(pred_sem_seg=PixelData(data=labels)))
    np.testing.assert_array_equal(drawn.plot(enlarge=3), drawn.plot().repeat(3, 0).repeat(3, 1))
