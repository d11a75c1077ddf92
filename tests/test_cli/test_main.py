"""``python -m mmlinattn``: its commands, and what it says where there is none."""

import importlib
import importlib.util
import os
import sys
from pathlib import Path

import pytest

import mmlinattn
from mmlinattn import __main__ as program
from mmlinattn.analysis.throughput import AUTOCAST
from mmlinattn.apis.sources import MAX_MEGAPIXELS
from mmlinattn.checkpoints.converters import SOURCES
from mmlinattn.cli import check_data, doctor, test, train
from mmlinattn.cli.arguments import analysis, data, prediction, runs
from mmlinattn.cli.commands import COMMANDS
from mmlinattn.deployment import FORMATS, is_exported
from mmlinattn.engine.config_files import package_configs
from mmlinattn.ops.gpu_check import Finding

COMPLEXITY = ('analyze', 'complexity', '--shape', '64', '64')


def test_every_command_has_a_module_and_help(capsys):
    folder = Path(program.__file__).parent / 'cli'
    modules = {path.stem for path in folder.glob('*.py')} - {'__init__', 'commands'}
    assert modules == {parse.__name__ for parse in COMMANDS.values()}
    for parse in COMMANDS.values():
        assert callable(importlib.import_module(f'mmlinattn.cli.{parse.__name__}').main)
    capsys.readouterr()
    for name in COMMANDS:
        with pytest.raises(SystemExit, match='^0$'):
            program.main([*name.split(), '--help'])
        assert capsys.readouterr().out.startswith(f'usage: mmlinattn {name} ')


def test_names_of_the_parsers_are_those_of_the_package():
    """The parsers repeat them, because they import nothing."""
    assert ('fp32', *AUTOCAST) == analysis.PRECISIONS
    assert list(data.SOURCES) == sorted(SOURCES)
    assert tuple(FORMATS) == prediction.FORMATS
    assert prediction.MAX_MEGAPIXELS == MAX_MEGAPIXELS
    assert all(is_exported(f'a{suffix}') for suffix in ('.ONNX', *runs.EXPORTED))


@pytest.mark.parametrize(
    'argv, message',
    [
        (['linearise'], "no command 'linearise'; did you mean linearize"),
        (['plot', 'attention'], "no command 'plot'"),
        (['analyze', 'atention', 'c'], "'analyze atention'; did you mean analyze attention"),
        (['analyze', '--help'], 'one of the commands analyze complexity, analyze throughput'),
        (['xyz'], "no command 'xyz'"),
        ([], 'usage: mmlinattn COMMAND'),
    ],
)
def test_no_such_command(capsys, argv, message):
    assert program.main(argv) == 2
    assert message in capsys.readouterr().err


def test_help_and_version(capsys):
    assert program.main(['--help']) == 0
    said = capsys.readouterr().out
    assert all(f'  {name} ' in said for name in COMMANDS)
    assert program.main(['--version']) == 0
    assert capsys.readouterr().out.strip() == mmlinattn.__version__


@pytest.mark.parametrize('option', ['--help', '--version'])
def test_help_into_a_pipe_that_nobody_reads(monkeypatch, option):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, 'w') as stdout:
        monkeypatch.setattr(sys, 'stdout', stdout)
        assert program.main([option]) == 0
        stdout.flush()  # Python does so when it ends


@pytest.mark.parametrize(
    'argv, message',
    [
        ([*COMPLEXITY, 'nowhere.py'], "config 'nowhere.py' does not exist"),
        ([*COMPLEXITY, 'ravlt-t_8xb128_in1'], 'did you mean ravlt-t_8xb128_in1k'),
        (['analyze', 'complexity', 'ravlt-t_8xb128_in1k', '--shape', '16', '64'], 'got (16, 64)'),
        (['check-data', 'nowhere.py'], "config 'nowhere.py' does not exist"),
        (['check-data', '..'], "config '..' is a folder"),
        (['analyze', 'attention', 'smca.py', 'smca.pth', '..'], "image '..' is a folder"),
        (['convert', 'nowhere.pth', 'out.pth'], 'nowhere.pth'),
        (['convert', 'no\x1b[2K.pth', 'out.pth'], 'no\\x1b[2K.pth'),
        (['predict', 'ravlt-t_8xb128_in1k', 'none.pth', 'no.jpg'], "source 'no.jpg' does not"),
    ],
)
def test_errors_are_one_line(error_of, argv, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in error_of(program.main, argv)


@pytest.mark.parametrize(
    'argv, message',
    [
        (['predict', 'c', 'w', 'a.jpg', '--mni-score', '1'], 'did you mean --min-score'),
        (['predict', 'c', 'w', 'a.jpg', '--min-score', '2'], '--min-score must be 0 to 1, got 2.0'),
        (['predict', 'c', 'w'], 'the following arguments are required: SOURCE'),
        (['export', 'c', 'w', '--shape', 'a', 'b'], "--shape: invalid int value: 'a'"),
        ([*COMPLEXITY, 'c', '--cfg-options', 'x'], "'x' is not KEY=VALUE"),
        (['train', 'c', '--cfg-options', 'a=[1, 2'], "'a=[1, 2' cannot be read: quote it for the"),
        (['train', 'c', '--cfg-options', 'a=[dict(b=print(1))]'], 'or set it in a config file'),
        (['train', 'c', '--cfg-options', 'a=dict({})', 'b=1'], "'a=dict({})' cannot be read"),
        (['test', 'c', 'w', '--launcher', 'foo'], "invalid choice: 'foo'"),
        (['train', 'c', '--launcher', 'pytorch'], 'torchrun --nproc-per-node N -m mmlinattn train'),
        (['doctor', 'now'], 'unrecognized arguments: now'),
        (['train', 'c', '--load-from', 'w'], '; instead: --cfg-options load_from=FILE'),
        (['test', 'c', 'w', '--eval', 'bbox'], 'metrics that test_evaluator of the config names'),
        (['train', 'c', '--gpus', '1'], '; instead: torchrun'),
    ],
)
def test_errors_of_arguments_are_one_line(error_of, argv, message, monkeypatch):
    monkeypatch.delenv('RANK', raising=False)
    error = error_of(program.main, argv)
    assert message in error and f'(mmlinattn {argv[0]} ' in error and '--help)' in error


def test_home_folder_after_an_equals_sign(monkeypatch):
    def done(args):
        assert (args.work_dir, args.cfg_options) == ('/home/me/x', {'a.b': '/home/me', 'c': 'a~'})
        return 0

    monkeypatch.setenv('HOME', '/home/me')
    monkeypatch.setattr(train, 'main', done)
    argv = ['train', 'c', '--work-dir=~/x', '--cfg-options', 'a.b=~', 'c=a~']
    assert program.main(argv) == 0


def test_options_with_dicts():
    """Written as in a config; what MMEngine's action reads stays as it was."""
    hooks = "custom_hooks=[dict(type='ProfilerHook', n=False), {'type': 'B', 'n': [-1, 2]}]"
    text = ['a.b=1,2', hooks, "c={'d': None}", 'name=best_{}.pth', 'e=dict(f=(1, dict()))', 'a.b=3']
    text += ['g={}', 'h=[{}, 1]', 'i={}.pth', 'j=a dict(b)']
    found = runs.train(['config', '--cfg-options', *text]).cfg_options
    assert found == {
        'a.b': 3,
        'custom_hooks': [{'type': 'ProfilerHook', 'n': False}, {'type': 'B', 'n': [-1, 2]}],
        'c': {'d': None},
        'name': 'best_{}.pth',
        'e': {'f': (1, {})},
        'g': {},
        'h': [{}, 1],
        'i': '{}.pth',
        'j': 'adict(b)',  # MMEngine's action removes spaces
    }


@pytest.mark.parametrize('argv', [['check-data', 'c'], ['check-data', 'c', '--debug']])
@pytest.mark.parametrize('place', [(program, '_import_command'), (check_data, 'load_config')])
def test_ctrl_c_is_one_line(capsys, monkeypatch, argv, place):
    def pressed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(*place, pressed)
    with pytest.raises(SystemExit, match='^130$'):
        program.main(argv)
    assert capsys.readouterr().err == 'error: interrupted\n'


@pytest.mark.parametrize(
    'argv',
    [
        [*COMPLEXITY, 'ravlt-t_8xb128_in1k', '--json', 'file/x.json'],
        ['predict', 'ravlt-t_8xb128_in1k', 'none.pth', 'a.jpg', '--out', 'file'],
        ['test', 'ravlt-t_8xb128_in1k', 'none.pth', '--out', 'file/x.pkl'],
        ['convert', 'none.pth', 'file/x.pth', '--source', 'vit'],
        ['analyze', 'key-weights', 'ravlt-t_8xb128_in1k', '--out', 'file/x.png'],
        [*COMPLEXITY, 'ravlt-t_8xb128_in1k', '--json', '.'],
        [*COMPLEXITY, 'ravlt-t_8xb128_in1k', '--json', 'device'],
    ],
)
def test_what_cannot_be_written_is_said_before_the_work(error_of, argv, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'file').write_text('in the way')
    (tmp_path / 'a.jpg').write_text('looked at later')
    (tmp_path / 'device').symlink_to('/dev/null')
    assert 'cannot be written' in error_of(program.main, argv)
    assert sorted(path.name for path in tmp_path.iterdir()) == ['a.jpg', 'device', 'file']
    assert (tmp_path / 'device').is_symlink()


@pytest.mark.parametrize('command', [train, test])
def test_a_work_dir_that_cannot_be_written(error_of, monkeypatch, tmp_path, command):
    """On a full disk the log would fail in 70 lines without a file."""
    monkeypatch.setattr(command, 'check_run', lambda *_: [])
    (tmp_path / 'file').write_text('in the way')
    name, weights = command.__name__.rpartition('.')[2], ['w'] * (command is test)
    argv = [name, 'ravlt-nano_shapes', *weights, f'--work-dir={tmp_path}/file']
    assert 'file/config.py cannot be written' in error_of(program.main, argv)


def test_a_variable_of_a_config_and_a_file_that_is_no_config(error_of, tmp_path):
    broken = tmp_path / 'broken.py'
    broken.write_text('model = dict(')
    without_suffix = str(tmp_path / 'broken')
    variable = ['ravlt-nano_shapes', '--cfg-options', 'data_root=elsewhere']
    for config, message in (
        (variable, "'data_root' is a variable of the config file"),
        ([str(broken)], f"SyntaxError: config {broken}: '(' was never closed"),
        ([without_suffix], f"config '{without_suffix}' does not exist, but {broken} does"),
    ):
        assert message in error_of(program.main, ['check-data', *config])


def test_a_config_by_its_name(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert program.main([*COMPLEXITY, 'ravlt-t_8xb128_in1k']) == 0
    assert 'ravlt-t_8xb128_in1k, 64 x 64' in capsys.readouterr().out


def test_the_doctor_says_what_is_there(capsys, monkeypatch, tmp_path):
    (tmp_path / 'data' / 'coco' / 'train2017').mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv('COLUMNS', '200')
    assert program.main(['doctor']) == 0
    lines = {
        line.split('│')[1].strip(): line
        for line in capsys.readouterr().out.splitlines()
        if '│' in line
    }
    import torch

    assert torch.__version__ in lines['torch']
    assert 'found' in lines['data/coco'] and 'datasets.md#public-sets' in lines['data/cityscapes']
    assert 'kernels' in lines


def test_the_doctor_names_a_gpu_that_does_not_answer(monkeypatch):
    def busy(index):
        raise RuntimeError('CUDA-capable device(s) is/are busy or unavailable\nCompile with')

    monkeypatch.setattr(doctor.torch.cuda, 'is_available', lambda: True)
    monkeypatch.setattr(doctor.torch.cuda, 'device_count', lambda: 1)
    monkeypatch.setattr(doctor.torch.cuda, 'get_device_properties', busy)
    text = 'CUDA-capable device(s) is/are busy or unavailable Compile with'
    assert [*doctor.devices()] == [('GPU 0', text, 'missing')]


def test_the_doctor_checks_the_kernels_of_a_gpu(capsys, error_of, monkeypatch):
    words = ['doctor', '--gpu']
    assert '--gpu needs a CUDA device, and torch finds none' in error_of(program.main, words)
    monkeypatch.setenv('COLUMNS', '200')
    monkeypatch.setattr(doctor.torch.cuda, 'is_available', lambda: True)
    monkeypatch.setattr(doctor.torch.cuda, 'current_device', lambda: 0)
    monkeypatch.setattr(doctor.torch.cuda, 'get_device_name', lambda device: 'Fake GPU')
    monkeypatch.setattr(doctor.dispatch, 'gpu_problem', lambda index: None)
    half = doctor.torch.float16
    found = [
        Finding('RALA', half, 3.125e-3, 0.01),
        Finding('ripple attention', half, problem='no room', is_unsupported=True),
        Finding('MALA', half, problem='RuntimeError: ptxas'),
    ]
    monkeypatch.setattr(doctor, 'check_kernels', lambda device: found)
    assert program.main(words) == 1
    out = capsys.readouterr().out
    assert out.startswith('Fake GPU') and '3.1e-03' in out and 'RuntimeError: ptxas' in out
    assert 'Set MMLINATTN_BACKEND=torch' in out
    del found[-1]
    assert program.main(words) == 0
    assert 'Set MMLINATTN' not in capsys.readouterr().out
    monkeypatch.setattr(doctor.dispatch, 'gpu_problem', lambda index: 'too old')
    assert '--gpu: too old' in error_of(program.main, words)


@pytest.mark.parametrize('backwards', [False, True])
def test_a_name_that_two_configs_have_means_the_first(monkeypatch, backwards):
    found = Path.rglob
    monkeypatch.setattr(Path, 'rglob', lambda *of: sorted(found(*of), key=str, reverse=backwards))
    assert package_configs()['ravlt-nano_shapes'].parent.name == 'quickstart'  # not zoo


@pytest.mark.parametrize(
    'lacking, message',
    [
        ('mmseg', 'not installed: pip install onedl-mmsegmentation ftfy'),
        ('ftfy', 'needs ftfy: pip install ftfy'),
        ('mmcv._ext', "ModuleNotFoundError: No module named 'mmcv._ext'"),
    ],
)
def test_the_doctor_says_what_to_install(monkeypatch, lacking, message):
    real = importlib.import_module

    def without(name):
        if name == 'mmseg':
            raise ModuleNotFoundError(f'No module named {lacking!r}', name=lacking)
        return real(name)

    monkeypatch.setattr(doctor.importlib, 'import_module', without)
    assert ('mmseg', message, 'missing') in [*doctor.packages()]
    assert program.main(['doctor']) == 1
