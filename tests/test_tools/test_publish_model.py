"""The script that publishes weights, and the weights that the package brings."""

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

import mmlinattn
from mmlinattn.checkpoints import check_complete, check_fits, load_state_dict, read_checkpoint
from mmlinattn.datasets import shapes
from mmlinattn.engine import build_model
from mmlinattn.engine.config import load_config
from mmlinattn.engine.config_files import package_configs
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


@pytest.fixture
def publish(tmp_path, root):
    """Runs the script with these words, on two test images of Shapes."""
    shapes.generate(tmp_path / 'shapes', 2, 2)
    script = root / 'tools/model_converters/publish_model.py'
    options = [f'test_dataloader.dataset.data_root={tmp_path}/shapes/ade']
    options.append('test_dataloader.batch_size=1')

    def call(*words):
        command = [sys.executable, script, NAME, *words, '--cfg-options', *options]
        return subprocess.run([*map(str, command)], capture_output=True, text=True)

    return call


@pytest.mark.slow
def test_weights_in_half_precision_with_their_score(trained, publish, tmp_path):
    out = tmp_path / 'out'
    done = publish(trained, out, '--license', 'MIT', '--dataset', 'Mine')
    assert done.returncode == 0, done.stderr
    (path,) = out.glob('*.pth')
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    assert path.name == f'{NAME}-{sha256[:8]}.pth' and str(path) in done.stdout
    content, before = read_checkpoint(path), read_checkpoint(trained)
    assert {*content} == {'state_dict', 'meta'}
    assert content['meta'] == dict(iter=7, epoch=0, dataset_meta=dict(classes=('a', 'b')))
    for name, value in before['state_dict'].items():
        half = value.half() if value.is_floating_point() else value
        assert torch.equal(content['state_dict'][name], half), name
    text = (out / f'{NAME}.yml').read_text()
    (entry,) = yaml.safe_load(text)['Models']
    metadata, (result,) = entry['Metadata'], entry['Results']
    assert (entry['Name'], entry['Config'], entry['Weights']) == (NAME, NAME, path.name)
    assert metadata['sha256'] == sha256 and metadata['License'] == 'MIT'
    assert metadata['Iterations'] == 7 and metadata['Parameters (M)'] == 2.13
    assert (result['Task'], result['Dataset']) == ('Semantic Segmentation', 'Mine')
    assert 0 <= result['Metrics']['mIoU'] <= 100
    # The folders of this machine are not named.
    assert metadata['Options'] == {'test_dataloader.batch_size': '1'} and str(tmp_path) not in text
    # The same name again: only with --force, and the older file goes.
    refused = publish(trained, out)
    assert refused.returncode == 2
    assert f'{NAME}.yml is there already; --force replaces it' in refused.stderr
    assert publish(trained, out, '--force', '--keep-precision').returncode == 0
    (other,) = out.glob('*.pth')
    assert other != path and other.stat().st_size > 1.8 * 1e6 * metadata['File Size (MB)']


@pytest.mark.slow
def test_what_is_refused(trained, publish, tmp_path):
    """In one line, before anything is written."""
    content = torch.load(trained, weights_only=True)
    name = next(iter(content['state_dict']))
    content['state_dict'][name][0] = 1e5
    large = tmp_path / 'large.pth'
    torch.save(content, large)
    del content['state_dict'][name]
    partial = tmp_path / 'partial.pth'
    torch.save(content, partial)
    (tmp_path / f'{NAME}.yml').write_text('Models: [{Name: a, Weights: b.pth}, {Name: b}]')
    (tmp_path / 'damaged').mkdir()
    (tmp_path / 'damaged' / f'{NAME}.yml').write_text('Models: [')
    for checkpoint, out, message in (
        (trained, 'damaged', f'{NAME}.yml is no entry of {NAME} alone'),
        (large, 'out', f'{name} is beyond the range of float16'),
        (partial, 'out', name),
        (trained, '', f'{NAME}.yml is no entry of {NAME} alone'),
    ):
        done = publish(checkpoint, tmp_path / out, '--force')
        assert done.returncode == 2 and message in done.stderr.splitlines()[-1]
        assert not [*tmp_path.glob(f'**/{NAME}*.pth')]


def entries():
    return [yaml.safe_load(path.read_text())['Models'][0] for path in WEIGHTS.glob('*.yml')]


def test_the_wheel_stays_small():
    assert {path.suffix for path in WEIGHTS.iterdir()} == {'.pth', '.yml'}
    assert sum(path.stat().st_size for path in WEIGHTS.iterdir()) < 10 * 2**20
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
