"""The command lines of export: a file that scores as the model does, and errors of one line."""

import copy
import json
import re
import shutil
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config

from mmlinattn.deployment import FORMATS, FileMetadata, capture, exporter, sample_image
from mmlinattn.engine import build_model
from mmlinattn.engine.config import load_config
from mmlinattn.engine.model import class_names
from tests.test_deployment.conftest import captures
from tests.test_deployment.stub import description, write_stub

from .conftest import CONFIGS
from .test_train_and_test import metrics


@pytest.fixture
def checkpoint(root, tmp_path):
    """checkpoint(task) -> file of weights that tell classes apart."""

    def call(task: str):
        torch.manual_seed(0)
        cfg = load_config(str(root / CONFIGS[task]))
        model = build_model(cfg).to_empty(device='cpu')
        for value in model.state_dict().values():
            if value.is_floating_point():
                torch.nn.init.normal_(value, std=1 / max(value[:1].numel(), 1) ** 0.5)
        for name, value in model.state_dict().items():
            if 'running_var' in name:
                value.fill_(1.0)
        path = tmp_path / f'{task}.pth'
        torch.save(dict(state_dict=model.state_dict(), meta={}), path)
        return path

    return call


@captures
@pytest.mark.parametrize('task', ['seg'])
def test_a_file_scores_as_the_model_does(
    root, run, options, checkpoint, tmp_path, capsys, monkeypatch, task
):
    pytest.importorskip('onnxruntime', reason='it comes with the extra "export"')
    pytest.importorskip('onnxscript', reason='it comes with the extra "export"')
    config, weights, changes = root / CONFIGS[task], checkpoint(task), options(task)
    out, said = tmp_path / 'model', []
    monkeypatch.setattr(exporter, 'log_warning', said.append)
    run('export', config, weights, '--shape', 64, 64, '--static',
        '--out', f'{out}.onnx', '--cfg-options', *changes)  # fmt: skip
    assert 'test_cfg=dict(size=(64, 64))' in said[0]
    assert len(said) == 1  # the outputs are those of the checkpoint
    printed = capsys.readouterr().out
    assert 'compared on the first image of the test set' in printed
    assert 'model.onnx, ' in printed and 'largest difference from torch at 64x64' in printed
    for name, file in (('torch', weights), ('onnx', f'{out}.onnx')):
        run('test', config, file, '--work-dir', tmp_path / name, '--cfg-options', *changes)
    expected, found = metrics(tmp_path / 'torch'), metrics(tmp_path / 'onnx')
    assert found['mIoU'] == pytest.approx(expected['mIoU'], abs=0.1) and expected['mIoU'] > 0


@pytest.mark.parametrize(
    'error, boxes, warns', [(1e-3, 1, 0), (0.02, 2, 1), (float('nan'), 1, 1), (0.0, 0, 0)]
)
def test_outputs_that_differ_are_a_warning(monkeypatch, tmp_path, error, boxes, warns):
    said, path = [], tmp_path / 'a.pt2'
    names = ['class 0', 'class 1'] if warns else ['a', 'class 1']
    results = {'64x64': 1e-6, '96x64': error}
    export = dict(metadata=None, write=lambda *_: exporter.ExportResult(path, 1.0, results))
    export['expected'] = [dict(count=torch.tensor([boxes]))]
    for name, stand_in in (
        ('Export', lambda *_: SimpleNamespace(**export)),
        ('load', lambda *_: (torch.nn.Linear(2, 1), names)),
        ('check_torch', lambda: None),
        ('warn_of_other_results', lambda *_: None),
        ('log_warning', said.append),
    ):
        monkeypatch.setattr(exporter, name, stand_in)
    [_] = exporter.export(None, '', ['pt2'], None, tmp_path / 'a', None)
    none = ['nothing is detected in the sample, so no boxes are compared: give --sample']
    differs = [f'{path} differs from the checkpoint: compare the scores of both']
    nameless = ['neither checkpoint nor test data name 2 classes: they are class 0, ...']
    assert said == nameless * warns + none * (not boxes) + differs * warns
    monkeypatch.setattr(exporter, 'LARGEST_ONNX', 8 / 2**30)
    with pytest.raises(ValueError, match='weights have 0.00 GiB, one file takes .* --format pt2'):
        next(exporter.export(None, '', ['pt2', 'onnx'], None, tmp_path / 'a', None))


@pytest.mark.parametrize(
    'given, dynamic, cure',
    [
        (None, True, 'test_cfg=dict(size_divisor=32)'),
        (dict(size_divisor=16), True, 'size_divisor=32'),
        (dict(size_divisor=64), True, None),
        (dict(size_divisor=32), False, 'test_cfg=dict(size=(64, 96))'),
        (dict(size=[64, 96]), False, None),
    ],
)
def test_a_config_that_does_not_pad_as_the_file(monkeypatch, given, dynamic, cure):
    said = []
    monkeypatch.setattr(exporter, 'log_warning', said.append)
    cfg = Config(dict(model=dict(data_preprocessor=dict(test_cfg=given))))
    for task, mode in (
        ('classification', 'whole'),
        ('segmentation', 'slide'),
        ('segmentation', 'whole'),
    ):
        about = description(task, 2, dynamic=dynamic, shape=[64, 96])
        cfg.model.test_cfg = dict(mode=mode)
        exporter.warn_of_other_results(cfg, FileMetadata.from_json(json.dumps(about)))
    assert 'sliding windows overlap' in said.pop(0)
    assert [cure in text for text in said] == [True] * bool(cure)


@pytest.mark.parametrize(
    'divisor, dynamic, cure',
    [
        (1, True, 'Set model.data_preprocessor.pad_size_divisor=32 in the config for equal detect'),
        (32, True, None),
        (32, False, 'pads images to 64x96, .* Export with dynamic sizes if images have others'),
    ],
)
def test_a_detector_that_does_not_pad_as_the_file(monkeypatch, divisor, dynamic, cure):
    said = []
    monkeypatch.setattr(exporter, 'log_warning', said.append)
    cfg = Config(dict(model=dict(data_preprocessor=dict(pad_size_divisor=divisor))))
    about = description('detection', 2, dynamic=dynamic, shape=[64, 96])
    exporter.warn_of_other_results(cfg, FileMetadata.from_json(json.dumps(about)))
    assert len(said) == bool(cure) and all(re.search(cure, text) for text in said)


@captures
@pytest.mark.parametrize(
    'arguments, message',
    [
        (('--shape', 64, 70), '70 is not a multiple of the stride 32; 64 and 96 are'),
        (('--shape', 8224, 64), 'a side is above 8128, the largest'),
        (('--shape', 32, 64), 'below 64x64, the smallest of this model (stride 32) with'),
        (('--shape', 64, 64, '--format', 'onnx', 'tflite'), '--format tflite: there are onnx, '),
        (
            ('--shape', 64, 64, '--format', 'absent'),
            'absent needs no_such_module: pip install no_such_module',
        ),
        (('--shape', 64, 64, '--sample', 'none.jpg'), '--sample none.jpg does not exist'),
        (('--shape', 64, 64, '--sample', __file__), 'is no image'),
        (('--shape', 64, 64, '--sample', '.'), '--sample . is a folder'),
        (('--shape', 64, 64, '--sample', 'http://[::]:1/a'), '--sample http://[::]:1/a cannot'),
        (('--shape', 64, 64, '--out', '..'), '--out .. is a folder: give the path of the files'),
    ],
)
def test_bad_input_is_one_line(
    root, run, options, checkpoint, tmp_path, error_of, monkeypatch, arguments, message
):
    absent = FORMATS['onnx']._replace(packages=('no_such_module',))
    monkeypatch.setitem(FORMATS, 'absent', absent)
    argv = [root / CONFIGS['seg'], checkpoint('seg'), '--out', tmp_path / 'out', *arguments]
    error = error_of(run, 'export', *argv, '--cfg-options', *options('seg'), debug=False)
    assert message in error
    assert not [*tmp_path.glob('out*')]


def test_a_config_without_readable_test_data(root, options, tmp_path):
    cfg = load_config(str(root / CONFIGS['seg']), {})
    cfg.merge_from_dict({'test_dataloader.dataset.data_root': str(tmp_path)})
    images = tmp_path / cfg.test_dataloader.dataset.data_prefix.img_path
    images.mkdir(parents=True)
    with pytest.raises(ValueError, match='^the first image of the test set cannot .*--sample$'):
        sample_image(cfg)  # no image is there
    cv2.imwrite(str(images / 'a.jpg'), np.zeros((8, 8, 3), np.uint8))
    readable = copy.deepcopy(cfg.test_dataloader.dataset)
    shutil.move(images / 'a.jpg', tmp_path / 'secret.jpg')
    (images / 'a.jpg').symlink_to(tmp_path / 'secret.jpg')
    cfg.test_dataloader.dataset.update(data_root=str(images), data_prefix=dict(img_path=''))
    with pytest.raises(ValueError, match='a link to .*secret.jpg, outside of the folders'):
        sample_image(cfg)
    (images / 'evil.pkl').write_bytes(b'\x80\x04cos\nmkdir\n(X\x01\x00\x00\x00atR.')
    cfg.test_dataloader.dataset.ann_file = 'evil.pkl'
    with pytest.raises(ValueError, match='evil.pkl is refused'):
        sample_image(cfg)
    cfg.test_dataloader.dataset = readable
    shutil.move(tmp_path / 'secret.jpg', images / 'a.jpg')
    for dataloader in (cfg.test_dataloader, None):  # without the map, and without test data
        cfg.test_dataloader = dataloader
        image, origin = sample_image(cfg)
        assert image.shape == (1, 3, 512, 512) and origin.startswith('noise')
    assert class_names(cfg, {}, 2) == ['class 0', 'class 1']


def test_an_older_torch_is_refused_before_weights_are_read(
    root, run, options, tmp_path, error_of, monkeypatch
):
    monkeypatch.setattr(capture, 'export', lambda model, args, dynamic_shapes, strict: None)
    argv = [root / CONFIGS['seg'], tmp_path / 'not_read.pth', '--shape', 64, 64]
    error = error_of(run, 'export', *argv, '--cfg-options', *options('seg'), debug=False)
    assert f'export needs torch 2.9 or newer, this is {torch.__version__}' in error


@captures
def test_a_damaged_file_and_options_of_a_checkpoint(root, run, options, tmp_path, error_of):
    path = tmp_path / 'cut.onnx'
    path.write_bytes(b'\x08\x08\x12')
    argv = ['test', root / CONFIGS['seg'], path, '--work-dir', tmp_path]
    error = error_of(run, *argv, '--cfg-options', *options('seg'), debug=False)
    assert 'cut.onnx cannot be loaded' in error
    assert '--tta needs a checkpoint' in error_of(run, *argv, '--tta', debug=False)


@pytest.mark.parametrize(
    'of_file, changes, message',
    [
        ('segmentation', {}, 'm.onnx does not fit the config: its task is segmentation, that of '),
        ('detection', dict(classes=[*'SHAPES'[::-1][:5]]), None),
    ],
)
def test_a_file_that_does_not_fit_is_not_scored(
    root, run, options, tmp_path, capsys, error_of, of_file, changes, message
):
    """One line and code 2 of the command; a file with other names of classes is scored."""
    pytest.importorskip('mmdet', reason='Mask R-CNN is that of MMDetection')
    pytest.importorskip('onnxruntime', reason='it comes with the extra "export"')
    path = write_stub(tmp_path / 'm.onnx', of_file, {**description(of_file, 5), **changes})
    arguments = [root / CONFIGS['det'], path, '--work-dir', tmp_path / 'work', '--cfg-options',
                 *options('det')]  # fmt: skip
    if message is None:
        run('test', *arguments)
        assert metrics(tmp_path / 'work')['coco/bbox_mAP'] >= 0
        assert 'm.onnx names its classes' in capsys.readouterr().out
    else:
        assert message in error_of(run, 'test', *arguments, debug=False)
