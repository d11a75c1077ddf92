"""The command ``publish``, and the weights that the package brings."""

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

import mmlinattn
from mmlinattn import __main__ as program
from mmlinattn.checkpoints import (
    CheckpointError,
    check_complete,
    check_fits,
    load_state_dict,
    read_checkpoint,
)
from mmlinattn.datasets import shapes
from mmlinattn.engine import build_model
from mmlinattn.engine.config import load_config, package_configs
from mmlinattn.engine.model import initial_model

pytest.importorskip('mmseg', reason='the model is one of MMSegmentation')

NAME = 'semantic-fpn_ravlt-nano_shapes'
WEIGHTS = Path(mmlinattn.__file__).parent / 'weights'


@pytest.fixture
def trained(tmp_path):
    """Checkpoint with what a training leaves: optimizer, folders of the machine."""
    model = initial_model(load_config(NAME))
    path = tmp_path / 'iter_7.pth'
    meta = dict(
        iter=7, epoch=0, cfg='data_root = "/home/me"', dataset_meta=dict(classes=('a', 'b'))
    )
    torch.save(dict(state_dict=model.state_dict(), meta=meta, optimizer=dict(big=[1])), path)
    return path


def publish(*words) -> int:
    return program.main(['publish', NAME, *map(str, words)])


def test_weights_alone_in_half_precision(trained, tmp_path, capsys):
    out = tmp_path / 'out'
    assert publish(trained, out, '--no-score', '--license', 'MIT') == 0
    (path,) = out.glob('*.pth')
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    assert path.name == f'{NAME}-{sha256[:8]}.pth' and str(path) in capsys.readouterr().out
    content, before = read_checkpoint(path), read_checkpoint(trained)
    assert {*content} == {'state_dict', 'meta'}
    assert content['meta'] == dict(iter=7, epoch=0, dataset_meta=dict(classes=('a', 'b')))
    for name, value in before['state_dict'].items():
        half = value.half() if value.is_floating_point() else value
        assert torch.equal(content['state_dict'][name], half), name
    (entry,) = yaml.safe_load((out / f'{NAME}.yml').read_text())['Models']
    metadata = entry['Metadata']
    assert (entry['Name'], entry['Config'], entry['Weights']) == (NAME, NAME, path.name)
    assert metadata['sha256'] == sha256 and metadata['License'] == 'MIT'
    assert metadata['Iterations'] == 7 and 'Epochs' not in metadata
    assert metadata['Parameters (M)'] == 2.13 and 'Results' not in entry
    # The same name again: only with --force, and the older file goes.
    with pytest.raises(SystemExit, match='2'):
        publish(trained, out, '--no-score')
    assert f'{NAME}.yml is there already; --force replaces it' in capsys.readouterr().err
    assert publish(trained, out, '--no-score', '--force', '--keep-precision') == 0
    (other,) = out.glob('*.pth')
    (entry,) = yaml.safe_load((out / f'{NAME}.yml').read_text())['Models']
    assert entry['Metadata']['Precision'] == 'float32'
    assert other != path and other.stat().st_size > 1.8 * path_size(metadata)
    check_complete(str(other), check_fits(str(other), build_model(package_configs()[NAME])))


def path_size(metadata: dict) -> float:
    return metadata['File Size (MB)'] * 1e6


@pytest.mark.slow
def test_the_score_is_that_of_the_published_file(trained, tmp_path, capsys):
    shapes.generate(tmp_path / 'shapes', 2, 2, workers=1)
    options = ['--cfg-options', f'test_dataloader.dataset.data_root={tmp_path}/shapes/ade']
    options.append('test_dataloader.batch_size=1')
    assert publish(trained, tmp_path / 'out', '--dataset', 'Mine', *options) == 0
    (path,) = (tmp_path / 'out').glob('*.pth')
    (entry,) = yaml.safe_load((tmp_path / 'out' / f'{NAME}.yml').read_text())['Models']
    (result,) = entry['Results']
    words = ['test', NAME, str(path), '--work-dir', str(tmp_path / 'test'), *options]
    # A process of its own: MMEngine keeps the visualizer of the first run.
    subprocess.run([sys.executable, '-m', 'mmlinattn', *words], check=True, capture_output=True)
    (file,) = (tmp_path / 'test').glob('*/*.json')
    scores = json.loads(file.read_text().splitlines()[-1])
    assert (result['Task'], result['Dataset']) == ('Semantic Segmentation', 'Mine')
    assert result['Metrics']
    assert entry['Metadata']['Options'] == {'test_dataloader.batch_size': '1'}
    for name, value in result['Metrics'].items():
        assert value == pytest.approx(scores[name], abs=1e-3), name


def test_what_is_refused(trained, tmp_path, capsys):
    """In one line, before anything is written."""
    content = torch.load(trained, weights_only=True)
    name = next(iter(content['state_dict']))
    content['state_dict'][name][0] = 1e5
    large = tmp_path / 'large.pth'
    torch.save(content, large)
    del content['state_dict'][name]
    partial = tmp_path / 'partial.pth'
    torch.save(content, partial)
    for words, message in (
        ([large, tmp_path / 'out', '--no-score'], f'{name} is beyond the range of float16'),
        ([partial, tmp_path / 'out', '--no-score'], name),
        ([trained, tmp_path / 'out', '--name', 'a/b'], '--name must have letters'),
        (
            [trained, tmp_path / 'out', '--cfg-options', 'test_dataloader.dataset.data_root=no'],
            'no',
        ),
    ):
        with pytest.raises(SystemExit, match='2'):
            publish(*words)
        assert message in capsys.readouterr().err.splitlines()[-1]
        assert not [*(tmp_path / 'out').glob('*')]


def test_other_models_are_not_replaced(trained, tmp_path, capsys):
    entry = tmp_path / 'a.yml'
    (tmp_path / 'b.pth').touch()
    for text in ('Models: [{Name: a, Weights: b.pth}, {Name: b}]', 'Models: [{Name: b}]', 'a: 1'):
        entry.write_text(text)
        with pytest.raises(SystemExit, match='2'):
            publish(trained, tmp_path, '--name', 'a', '--force', '--no-score')
        assert 'a.yml is no entry of a alone' in capsys.readouterr().err
    entry.write_text('Models: [{Name: a, Weights: b.pth}]')  # a file of another name stays
    assert publish(trained, tmp_path, '--name', 'a', '--force', '--no-score') == 0
    assert (tmp_path / 'b.pth').exists() and [*tmp_path.glob('a-*.pth')]


def test_a_config_of_a_file_without_test_data(trained, tmp_path):
    """The entry names no folder of this machine."""
    (tmp_path / 'mine.py').write_text(
        f'_base_ = {str(package_configs()[NAME])!r}\n'
        'test_dataloader = test_cfg = test_evaluator = None\n'
    )
    words = ['publish', str(tmp_path / 'mine.py'), str(trained), str(tmp_path), '--no-score']
    assert program.main(words) == 0
    text = (tmp_path / 'mine.yml').read_text()
    assert 'Config: mine.py' in text and str(tmp_path) not in text


def entries():
    return [yaml.safe_load(path.read_text())['Models'][0] for path in WEIGHTS.glob('*.yml')]


def test_the_wheel_stays_small():
    assert {path.suffix for path in WEIGHTS.iterdir()} == {'.pth', '.yml'}
    assert sum(path.stat().st_size for path in WEIGHTS.iterdir()) < 10e6
    assert {entry['Weights'] for entry in entries()} == {p.name for p in WEIGHTS.glob('*.pth')}


@pytest.mark.parametrize('entry', entries(), ids=lambda entry: entry['Name'])
def test_weights_of_the_package(entry):
    """By their address, with the hash of their entry, and they fill their model."""
    framework = entry['Metadata']['Framework']
    pytest.importorskip(framework, reason=f'the model is one of {framework}')
    path = WEIGHTS / entry['Weights']
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    assert sha256 == entry['Metadata']['sha256'] and path.stem.endswith(f'-{sha256[:8]}')
    address = f'mmlinattn://{entry["Name"]}'
    report = check_fits(address, build_model(package_configs()[entry['Config']]))
    check_complete(address, report)
    state, _ = load_state_dict(address)
    assert {v.dtype for v in state.values() if v.is_floating_point()} == {torch.float16}
    assert entry['Metadata']['License'] and entry['Results'][0]['Metrics']


def test_no_weights_of_that_name():
    known = ', '.join(sorted(entry['Name'] for entry in entries()))
    message = re.escape(f'mmlinattn://no: this package has no such weights, but {known}')
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint('mmlinattn://no')
