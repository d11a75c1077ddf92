"""Prediction of files that belong to no data set, by models of all three frameworks."""

import json
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from mmengine.structures import BaseDataElement, InstanceData, PixelData
from PIL import Image
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO

from mmlinattn import __main__ as program
from mmlinattn.apis import Predictor, coco_categories, coco_json
from mmlinattn.apis.coco import coco_record
from mmlinattn.cli import predict as cli
from mmlinattn.cli.predict import files_to_predict
from mmlinattn.engine.config import load_config
from mmlinattn.utils import WriteError
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
    return folder


def predict(capsys, *argv):
    code = program.main(['predict', *map(str, argv)])
    return code, capsys.readouterr()


def of_coco(path):
    content = json.loads(path.read_text())
    coco = COCO()
    coco.dataset = content
    coco.createIndex()
    return content, coco


@pytest.mark.parametrize('task', CONFIGS)
def test_a_folder(task, files, pictures, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv('COLUMNS', '200')
    config, weights = files(task)
    options = ('--out', tmp_path, '--min-score', 0.1)
    code, said = predict(capsys, config, weights, pictures, *options)
    assert code == 0 and '2 images' in said.out
    content, coco = of_coco(tmp_path / 'predictions.json')
    assert [image['file_name'] for image in content['images']] == ['a.jpg', 'below/b.png']
    assert (content['images'][0]['height'], content['images'][0]['width']) == (64, 96)
    assert {c['name'] for c in content['categories']} >= set(SHAPES)
    assert content['annotations']
    for name, size in (('a', (64, 96)), ('below/b', (70, 64))):
        assert cv2.imread(str(tmp_path / 'vis' / f'{name}.png')).shape[:2] == size
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
    """Indexed PNGs with the regions of the COCO file."""
    found = {path.relative_to(folder).as_posix() for path in folder.glob('labels/**/*.png')}
    assert found == {'labels/a.png', 'labels/below/b.png'}
    labels = np.asarray(Image.open(folder / 'labels/a.png'))
    of_first = [one for one in content['annotations'] if one['image_id'] == 1]
    index = {entry['id']: i for i, entry in enumerate(content['categories'])}
    assert {index[one['category_id']]: one['area'] for one in of_first} == {
        value: (labels == value).sum() for value in np.unique(labels)
    }


def test_names_that_differ_only_in_suffix(files, pictures, tmp_path, capsys):
    folder = tmp_path / 'in'
    folder.mkdir()
    for name in ('x.jpg', 'x.png', 'x.jpg.jpg', 'y.jpg'):
        (folder / name).write_bytes((pictures / 'a.jpg').read_bytes())
    config, weights = files('cls')
    assert predict(capsys, config, weights, folder, '--out', tmp_path / 'out')[0] == 0
    found = sorted(path.name for path in (tmp_path / 'out' / 'vis').iterdir())
    assert found == ['x.jpg.jpg.png', 'x.jpg.png', 'x.png.png', 'y.png']


def test_notes_are_printed(files, pictures, tmp_path, capsys):
    config, weights = files('cls')
    out = ('--out', tmp_path, '--tta')
    code, said = predict(capsys, config, weights, pictures / 'a.jpg', *out)
    assert code == 0 and said.out.startswith('test-time augmentation (default: ')
    config, weights = files('det')
    code, said = predict(capsys, config, weights, pictures / 'a.jpg', *out[:2],
                         '--cfg-options', 'test_dataloader.dataset.ann_file=none.json')  # fmt: skip
    assert code == 0 and said.out.startswith('category ids are counted from 1: ')
    assert 'none.json does not exist' in said.out


@pytest.mark.parametrize('task', CONFIGS)
def test_as_the_frameworks_predict(task, files, pictures):
    config, weights = files(task)
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


def test_images_that_fail_are_named_and_the_rest_goes_on(
    files, pictures, tmp_path, capsys, error_of, monkeypatch
):
    monkeypatch.setenv('COLUMNS', '300')
    folder = tmp_path / 'in'
    folder.mkdir()
    whole = (pictures / 'a.jpg').read_bytes()
    (folder / 'a.jpg').write_bytes(b'no image')
    (folder / 'b.jpg').write_bytes(whole)
    (folder / 'c.jpg').write_bytes(whole[: len(whole) // 2])  # OpenCV fills the rest with grey
    for name in ('d.jpg', 'e.jpg'):
        (folder / name).write_bytes(whole)
    (folder / f'{"n" * 250}.bmp').write_bytes((pictures / 'below/b.png').read_bytes())
    large = np.zeros((80, 100, 3), np.uint8)
    cv2.imwrite(str(folder / 'large.png'), large)
    original = Predictor.predict_batch

    def failing(self, images, names, min_score):
        if 'd.jpg' in names:
            raise RuntimeError('out of memory')
        return original(self, images, names, min_score)

    monkeypatch.setattr(Predictor, 'predict_batch', failing)
    config, weights = files('cls')
    options = ('--out', tmp_path / 'out', '--batch-size', 5, '--max-megapixels', 0.007)
    code, said = predict(capsys, config, weights, folder, *options)
    assert code == 1 and 'error: 4 image(s) failed' in said.err
    assert all(f'image {folder / name} cannot be read' in said.out for name in ('a.jpg', 'c.jpg'))
    assert 'image d.jpg: RuntimeError: out of memory' in said.out
    assert 'large.png cannot be read: 100 x 80 = 0.0 megapixels are more than' in said.out
    content, _ = of_coco(tmp_path / 'out' / 'predictions.json')
    found = [image['file_name'] for image in content['images']]
    assert found == ['b.jpg', 'e.jpg', f'{"n" * 250}.bmp']
    for options, message in (
        (('--batch-size', 0), '--batch-size must be positive, got 0'),
        (('--min-score', 2), '--min-score must be 0 to 1, got 2.0'),
    ):
        assert message in error_of(predict, capsys, config, weights, folder, *options)


@pytest.mark.parametrize('error, code', [(KeyboardInterrupt(), 130), (SystemExit(143), 143)])
def test_images_so_far_are_kept(files, pictures, tmp_path, capsys, monkeypatch, error, code):
    original = Predictor.predict_batch

    def ended(self, images, names, min_score):
        if names == ['below/b.png']:
            raise error
        return original(self, images, names, min_score)

    monkeypatch.setattr(Predictor, 'predict_batch', ended)
    given = (*files('cls'), pictures, '--out', tmp_path)
    with pytest.raises(SystemExit, match=f'^{code}$'):
        predict(capsys, *given)
    content, _ = of_coco(tmp_path / 'predictions.json')
    assert [image['file_name'] for image in content['images']] == ['a.jpg']


def test_older_predictions_outlive_a_full_disk(files, pictures, tmp_path, monkeypatch, error_of):
    def full(path, *_, **__):
        raise WriteError(f'{path} cannot be written')

    older = tmp_path / 'predictions.json'
    older.write_text('{}')
    monkeypatch.setattr(cli, 'write_json', full)
    argv = ['predict', *map(str, (*files('cls'), pictures / 'a.jpg', '--out', tmp_path))]
    assert f'{older} cannot be written' in error_of(program.main, argv)
    assert older.read_text() == '{}'


def test_pictures_in_the_source_are_not_predicted(files, pictures, tmp_path, capsys):
    folder = tmp_path / 'in'
    folder.mkdir()
    (folder / 'a.jpg').write_bytes((pictures / 'a.jpg').read_bytes())
    for _ in range(2):
        code, said = predict(capsys, *files('seg'), folder, '--out', folder / 'out')
        assert code == 0 and '\n1 images' in said.out
    assert sorted(path.name for path in (folder / 'out').iterdir()) == [
        'labels', 'predictions.json', 'vis',
    ]  # fmt: skip


def test_pictures_of_an_earlier_prediction_are_not_predicted(tmp_path):
    """Those of another --out below the source; a source may still be such a folder itself."""
    for name in ('a.png', 'results/vis/a.png', 'results/labels/a.png', 'vis/b.png'):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / 'results/predictions.json').touch()

    def found(source):
        options = SimpleNamespace(sources=[str(tmp_path / source)], out=tmp_path / 'other')
        return [*files_to_predict(options)]

    assert found('') == ['a.png', 'vis/b.png']
    assert found('results/vis') == found('results/vis/a.png') == ['a.png']


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
    categories = coco_categories('xyz')
    records = [
        coco_record('a', (4, 6), objects, categories, min_score=0.5),
        coco_record('b', (2, 3), regions, categories),
    ]
    content = coco_json(records, categories)
    one, *parts = content['annotations']
    assert (one['category_id'], one['bbox'], one['area']) == (2, [2, 1, 3, 2], 6)
    np.testing.assert_array_equal(coco_mask.decode(one['segmentation']), mask[0])
    assert [(p['image_id'], p['category_id'], p['area']) for p in parts] == [(2, 1, 3), (2, 3, 3)]
    np.testing.assert_array_equal(coco_mask.decode(parts[1]['segmentation']), labels[0] == 2)
    assert [c['id'] for c in content['categories']] == [1, 2, 3]
