"""The command lines of export: a file that scores as the model does, and errors of one line."""

import re

import pytest
import torch

from mmlinattn.deployment import FORMATS, capture, timing
from mmlinattn.engine import build_model
from mmlinattn.engine.config import load_config
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
    out = tmp_path / 'model'
    run('export', config, weights, '--shape', 64, 64, '--static',
        '--out', f'{out}.onnx', '--cfg-options', *changes)  # fmt: skip
    printed = capsys.readouterr().out
    assert 'compared on the first image of the test set' in printed
    assert 'model.onnx, ' in printed and 'largest difference from torch at 64x64' in printed
    for name, file in (('torch', weights), ('onnx', f'{out}.onnx')):
        run('test', config, file, '--work-dir', tmp_path / name, '--cfg-options', *changes)
    expected, found = metrics(tmp_path / 'torch'), metrics(tmp_path / 'onnx')
    assert found['mIoU'] == pytest.approx(expected['mIoU'], abs=0.1) and expected['mIoU'] > 0
    run('latency', config, weights, f'{out}.onnx', '--shape', 64, 64, '--seconds',
        0.1, '--cfg-options', *changes)  # fmt: skip
    printed = capsys.readouterr().out
    assert 'torch' in printed and 'model.onnx' in printed
    # Two rounds of both: torch is disturbed in the first one, the file in the second one.
    measured = iter([[9.0, 9.5], [2.0, 3.0], [4.0, 8.0], [5.0, 5.5]])
    monkeypatch.setattr(timing, '_times', lambda call, seconds: next(measured))
    run('latency', config, weights, f'{out}.onnx', '--shape', 64, 64, '--rounds',
        2, '--cfg-options', *changes)  # fmt: skip
    numbers = re.findall(r'(torch|onnx)\D+([\d.]+)\D+([\d.]+)', capsys.readouterr().out)
    assert numbers[-2:] == [('torch', '4.0', '8.0'), ('onnx', '2.0', '3.0')]
    # A larger image than a file of one size takes.
    with pytest.raises(SystemExit) as stopped:
        run('latency', config, weights, f'{out}.onnx', '--shape', 96, 64,
            '--cfg-options', *changes, debug=False)  # fmt: skip
    assert stopped.value.code == 2
    assert 'takes 64x64 alone, got 96x64' in capsys.readouterr().err


@captures
@pytest.mark.parametrize(
    'arguments, message',
    [
        (('--shape', 64, 70), r'70 is not a multiple of the stride 32; 64 and 96 are'),
        (('--shape', 32, 64), r'below 64x64, the smallest that this model \(stride 32\)'),
        (('--shape', 64, 64, '--format', 'onnx', 'tflite'), '--format tflite: there are onnx, '),
        (
            ('--shape', 64, 64, '--format', 'absent'),
            'absent needs no_such_module: pip install nowhere',
        ),
        (('--shape', 64, 64, '--format', 'executorch'), '--format executorch is not served: Exec'),
        (('--shape', 64, 64, '--sample', 'none.jpg'), '--sample none.jpg does not exist'),
        (('--shape', 64, 64, '--sample', __file__), 'is no image'),
    ],
)
def test_bad_input_is_one_line(
    root, run, options, checkpoint, tmp_path, capsys, monkeypatch, arguments, message
):
    absent = FORMATS['onnx']._replace(packages=(('no_such_module', 'nowhere'),))
    monkeypatch.setitem(FORMATS, 'absent', absent)
    refuse(run, capsys, message, root / CONFIGS['seg'], checkpoint('seg'), *arguments, '--out',
           tmp_path / 'out', '--cfg-options', *options('seg'))  # fmt: skip
    assert not [*tmp_path.glob('out*')]


def test_an_older_torch_is_refused_before_weights_are_read(
    root, run, options, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(capture, 'export', lambda model, args, dynamic_shapes, strict: None)
    refuse(run, capsys, f'export needs torch 2.9 or newer, this is {re.escape(torch.__version__)}',
           root / CONFIGS['seg'], tmp_path / 'not_read.pth', '--shape', 64, 64, '--cfg-options',
           *options('seg'))  # fmt: skip


@captures
def test_raw_outputs_of_two_stages_are_refused_before_weights_are_read(
    root, run, options, tmp_path, capsys
):
    pytest.importorskip('mmdet', reason='Mask R-CNN is that of MMDetection')
    path = tmp_path / 'not_read.pth'
    refuse(run, capsys, '--raw: MaskRCNN has two stages.*export without --raw', root /
           CONFIGS['det'], path, '--raw', '--shape', 64, 64, '--cfg-options',
           *options('det'))  # fmt: skip


@captures
@pytest.mark.parametrize(
    'content, message', [(None, 'no.pth'), (b'PK\x03\x04', 'no.pth is incomplete')]
)
def test_a_checkpoint_that_is_none(root, run, options, tmp_path, capsys, content, message):
    path = tmp_path / 'no.pth'
    if content:
        path.write_bytes(content)
    refuse(run, capsys, message, root / CONFIGS['seg'], path, '--shape', 64, 64,
           '--cfg-options', *options('seg'))  # fmt: skip


def test_a_damaged_file_and_options_of_a_checkpoint(root, run, options, tmp_path, capsys):
    path = tmp_path / 'cut.onnx'
    path.write_bytes(b'\x08\x08\x12')
    arguments = [root / CONFIGS['seg'], path, '--work-dir', tmp_path]
    refuse(run, capsys, 'cut.onnx cannot be loaded', *arguments, '--cfg-options',
           *options('seg'), tool='test')  # fmt: skip
    refuse(run, capsys, '--tta needs a checkpoint', *arguments, '--tta', tool='test')


@pytest.mark.parametrize(
    'of_file, changes, message',
    [
        (
            'segmentation',
            {},
            r'm\.onnx does not fit the config: its task is segmentation, that of ',
        ),
        ('detection', dict(classes=['a', 'b', 'c']), 'its number of classes is 3, that of Mask'),
        ('detection', dict(task='forward'), 'has damaged metadata: task must be one of class'),
        ('detection', dict(stride=0), 'damaged metadata: stride must be a positive integer, got 0'),
        ('detection', dict(batch=-1), 'damaged metadata: batch must be a positive integer or null'),
        ('detection', dict(classes=[*'SHAPES'[::-1][:5]]), None),
        (
            'detection',
            dict(classes=['square', 'circle', 'triangle', 'star', 'cross']),
            "class 0 is 'square' in the file and 'circle' in the data set",
        ),
        ('detection', dict(dynamic=False, shape=[32, 32], least=32), 'an image of 64x64 for a'),
    ],
)
def test_a_file_that_does_not_fit_is_not_scored(
    root, run, options, tmp_path, capsys, of_file, changes, message
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
        assert 'scores compare them by number' in capsys.readouterr().out
    else:
        refuse(run, capsys, message, *arguments, tool='test')


@pytest.mark.parametrize(
    'changes, message',
    [
        (dict(task='forward'), 'has damaged metadata: task must be one of'),
        (dict(classes=['a']), 'its number of classes is 1, that of EncoderDecoder'),
        (dict(stride=16), 'its stride is 16, that of EncoderDecoder in the config is 32'),
        (dict(raw=True, outputs=['logits']), 'one of them has raw outputs'),
    ],
)
def test_a_file_that_does_not_fit_is_not_timed(
    root, run, options, checkpoint, tmp_path, capsys, monkeypatch, changes, message
):
    pytest.importorskip('onnxruntime', reason='it comes with the extra "export"')
    monkeypatch.setattr(timing, '_times', lambda call, seconds: pytest.fail('it is timed'))
    fits = description('segmentation', 6)
    files = [
        write_stub(tmp_path / f'{i}.onnx', 'segmentation', about)
        for i, about in enumerate((fits, {**fits, **changes}))
    ]
    refuse(run, capsys, message, root / CONFIGS['seg'], checkpoint('seg'), *files, '--shape', 64,
           64, '--cfg-options', *options('seg'), tool='latency')  # fmt: skip


def refuse(run, capsys, message, *arguments, tool='export'):
    """The tool ends with code 2 and one line of error."""
    with pytest.raises(SystemExit) as stopped:
        run(tool, *arguments, debug=False)
    lines = [line for line in capsys.readouterr().err.splitlines() if 'error: ' in line]
    assert stopped.value.code == 2 and len(lines) == 1
    assert re.search(message, lines[0]), lines
