"""Every road by which a checkpoint comes in: the same rules on each."""

import contextlib
import hashlib
import io
import os
from pathlib import Path

import pytest
import torch
from mmengine import fileio
from mmengine.model import BaseModel, Sequential
from mmengine.registry import MODELS
from mmengine.runner import Runner
from mmengine.runner import load_checkpoint as mmengine_load
from torch import nn
from torch.utils.data import DataLoader

from mmlinattn.checkpoints import CheckpointError, load_checkpoint, read_checkpoint
from mmlinattn.checkpoints.checkpoint_uri import mmengine_zoos, package_weights
from mmlinattn.engine.runner.runner import PluginRunner
from mmlinattn.utils.pretrained import initial_weights_read_safely

WEIGHT = torch.arange(6.0).reshape(2, 3)


class Evil:
    """Unpickling it makes a folder."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


def saved(path: Path, **content) -> Path:
    torch.save(content or dict(state_dict=dict(weight=WEIGHT), meta=dict(epoch=1)), path)
    return path


@pytest.fixture
def web(tmp_path, monkeypatch):
    """URL -> content of the web; downloads go to a cache of the test."""
    monkeypatch.setenv('TORCH_HOME', str(tmp_path / 'cache'))
    pages = {}

    class Response(io.BytesIO):
        def info(self):
            return {}

        def getheaders(self, name):
            return []

    def urlopen(request):
        if request.full_url not in pages:
            raise OSError('HTTP Error 404: Not Found')
        response = Response(pages[request.full_url])
        response.info = lambda: response
        return response

    monkeypatch.setattr(torch.hub, 'urlopen', urlopen)
    return pages


def test_local_file_and_file_address(tmp_path):
    path = saved(tmp_path / 'a b.pth')
    for source in (path, str(path), path.as_uri(), f'safe://{path}'):
        assert torch.equal(read_checkpoint(source)['state_dict']['weight'], WEIGHT)
    with pytest.raises(FileNotFoundError, match=r'missing\.pth'):
        read_checkpoint('file:///missing.pth')
    with pytest.raises(IsADirectoryError, match='is a folder'):
        read_checkpoint(tmp_path)


def test_web_addresses(web, tmp_path):
    first, second = 'https://a.org/a.pth', 'https://b.org/a.pth'
    for address, value in ((first, WEIGHT), (second, WEIGHT + 1)):  # two files of one name
        web[address] = saved(tmp_path / 'a.pth', weight=value).read_bytes()
        assert torch.equal(read_checkpoint(address)['state_dict']['weight'], value)
    web.clear()  # they are fetched once
    assert torch.equal(read_checkpoint(first)['state_dict']['weight'], WEIGHT)
    with pytest.raises(CheckpointError, match=r'https://a.org/b.pth cannot be downloaded.*404'):
        read_checkpoint('https://a.org/b.pth')
    with pytest.raises(CheckpointError, match='use https'):
        read_checkpoint('http://a.org/a.pth')
    with pytest.raises(CheckpointError, match=r'\*\*\*@a.org/a.pth is refused: an address with'):
        read_checkpoint('https://me:secret@a.org/a.pth')


def test_a_cut_transfer_says_what_to_remove(web, tmp_path):
    web['https://a.org/a.pth'] = saved(tmp_path / 'a.pth').read_bytes()[:500]
    with pytest.raises(CheckpointError, match='is incomplete.*remove .*to download') as found:
        read_checkpoint('https://a.org/a.pth')
    Path(str(found.value).split('remove ')[1].split(' to download')[0]).unlink()
    web['https://a.org/a.pth'] = (tmp_path / 'a.pth').read_bytes()
    assert read_checkpoint('https://a.org/a.pth')['meta'] == dict(epoch=1)


def test_sha256_in_the_name(web, tmp_path):
    content = saved(tmp_path / 'a.pth').read_bytes()
    name = f'net-{hashlib.sha256(content).hexdigest()[:8]}.pth'
    web[f'https://a.org/{name}'] = web['https://a.org/net-00000000.pth'] = content
    read_checkpoint(f'https://a.org/{name}')
    assert (tmp_path / 'cache/hub/checkpoints' / name).is_file()  # as torch itself keeps it
    with pytest.raises(CheckpointError, match='invalid hash value .expected "00000000"'):
        read_checkpoint('https://a.org/net-00000000.pth')
    assert not [*(tmp_path / 'cache').rglob('net-00000000.pth')]


ZOOS = ['torchvision://net', 'open-mmlab://net', 'mmcls://net']


@pytest.fixture
def zoos(monkeypatch):
    """The zoos of MMEngine, each with one model 'net' at an address of the test."""
    for zoo in ('torchvision_models', 'external_models', 'mmcls_models'):
        monkeypatch.setattr(mmengine_zoos, f'get_{zoo}', lambda: dict(net='https://a.org/a.pth'))


@pytest.mark.parametrize('name', ZOOS)
def test_model_zoos(web, zoos, name, tmp_path):
    key = 'backbone.weight' if name.startswith('mmcls') else 'weight'
    web['https://a.org/a.pth'] = saved(tmp_path / 'a.pth', **{key: WEIGHT}).read_bytes()
    assert list(read_checkpoint(name)['state_dict']) == ['weight']
    with pytest.raises(CheckpointError, match='MMEngine has no such weights'):
        read_checkpoint(name.partition('://')[0] + '://nothing')


def test_weights_of_the_package_and_unknown_schemes():
    name = next(iter(package_weights()))
    assert read_checkpoint(f'mmlinattn://{name}')['state_dict']
    with pytest.raises(CheckpointError, match=f'this package has no such weights, but .*{name}'):
        read_checkpoint('mmlinattn://nothing')
    with pytest.raises(
        CheckpointError, match="nowhere://a.pth: MMEngine has no file backend 'nowhere'"
    ):
        read_checkpoint('nowhere://a.pth')


@pytest.mark.parametrize('name', ['a.pth', 'file', 'https://a.org/a.pth', 's3://b/a.pth', *ZOOS])
def test_code_is_refused_on_every_road(web, zoos, name, tmp_path, monkeypatch):
    """By name, and through MMEngine's loader behind ``safe://``."""
    mark = tmp_path / 'ran'
    path = saved(tmp_path / 'a.pth', state_dict=dict(weight=WEIGHT), evil=Evil(mark))
    web['https://a.org/a.pth'] = path.read_bytes()
    monkeypatch.setattr(fileio, 'get', lambda uri: path.read_bytes())
    name = {'a.pth': str(path), 'file': path.as_uri()}.get(name, name)
    for read in (read_checkpoint, lambda name: mmengine_load(nn.Linear(3, 2), f'safe://{name}')):
        with pytest.raises(CheckpointError, match='refused.*mkdir'):
            read(name)
    assert not mark.exists()


@pytest.mark.parametrize('prefix', ['backbone.', None])
@pytest.mark.parametrize('inside', [True, False])
def test_init_cfg_is_read_safely(tmp_path, backbone_cfg, inside, prefix):
    """Our backbones do it by themselves, other modules in this package's commands."""
    init = dict(type='Pretrained', checkpoint=str(tmp_path / 'a.pth'), prefix=prefix)
    model = MODELS.build(dict(backbone_cfg, init_cfg=init))
    state = {f'{prefix or ""}{k}': v + 1 for k, v in model.state_dict().items()}
    saved(tmp_path / 'a.pth', state_dict=state, evil=Evil(tmp_path / 'ran'))
    whole = nn.ModuleList([model])
    with pytest.raises(CheckpointError, match='refused.*mkdir'):
        if inside:
            with initial_weights_read_safely(whole):
                model.init_weights()
        else:
            model.init_weights()
    assert model.init_cfg['checkpoint'] == str(tmp_path / 'a.pth')
    assert not (tmp_path / 'ran').exists()
    saved(tmp_path / 'a.pth', state_dict=state)
    model.init_weights()
    name = 'stages.0.0.attn.in_proj.weight'
    assert torch.equal(model.state_dict()[name], state[f'{prefix or ""}{name}'])


def test_a_prefix_behind_that_of_data_parallel(tmp_path):
    """MMEngine looks for 'backbone.' before it removes 'module.'."""
    saved(tmp_path / 'a.pth', state_dict={'module.backbone.weight': WEIGHT, 'module.n': WEIGHT})
    init = dict(type='Pretrained', checkpoint=f'safe://{tmp_path}/a.pth', prefix='backbone.')
    model = Sequential(nn.Linear(3, 2, bias=False), init_cfg=init)
    model.weight = model[0].weight
    model.init_weights()
    assert torch.equal(model.weight, WEIGHT)


def test_addresses_that_name_no_file(tmp_path):
    with pytest.raises(CheckpointError, match=r"names the host 'folder': write file:///"):
        read_checkpoint('file://folder/a.pth')
    saved(tmp_path / 'a.pth', state_dict=dict(weight=WEIGHT))
    assert read_checkpoint(f'file://localhost{tmp_path}/a.pth')['state_dict'].keys() == {'weight'}
    with pytest.raises(CheckpointError, match="hf://a/b: MMEngine has no file backend 'hf'"):
        read_checkpoint('hf://a/b')


def test_python_in_the_meta_information_is_left_out(tmp_path):
    """When resuming MMEngine runs ``meta['config']`` as Python."""
    meta = dict(epoch=1, iter=2, config='import os')
    path = saved(tmp_path / 'a.pth', state_dict=dict(weight=WEIGHT), meta=meta)
    assert read_checkpoint(path)['meta'] == dict(epoch=1, iter=2)


def test_load_into_a_model(tmp_path):
    model = nn.Linear(3, 2, bias=False)
    assert load_checkpoint(model, saved(tmp_path / 'a.pth')) == dict(epoch=1)
    assert torch.equal(model.weight, WEIGHT)
    with pytest.raises(CheckpointError, match='(?s)not of this whole model.*bias'):
        load_checkpoint(nn.Linear(3, 2), tmp_path / 'a.pth')


class Whole(BaseModel):
    """A model of MMEngine with a part that is no backbone of this package."""

    def __init__(self, init_cfg=None):
        super().__init__()
        self.part = Sequential(nn.Linear(3, 2, bias=False), init_cfg=init_cfg)

    def forward(self, inputs, data_samples=None, mode='tensor'):
        return dict(loss=self.part(inputs).sum())


@pytest.mark.parametrize('road', ['load_from', 'resume', 'init_cfg'])
def test_a_runner_of_this_package_runs_no_code(tmp_path, road):
    """MMEngine's own runs it: the difference is made by PluginRunner alone."""
    evil = Evil(tmp_path / 'ran')
    name = '0.weight' if road == 'init_cfg' else 'part.0.weight'
    saved(tmp_path / 'a.pth', state_dict={name: WEIGHT}, meta=dict(epoch=0, iter=0), evil=evil)
    path = str(tmp_path / 'a.pth')

    def runner(kind):
        return kind(
            model=Whole(dict(type='Pretrained', checkpoint=path) if road == 'init_cfg' else None),
            work_dir=str(tmp_path / 'runs'),
            experiment_name=f'{kind.__name__}_{road}',
            train_dataloader=DataLoader([torch.ones(3)] * 2),
            optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.0)),
            train_cfg=dict(by_epoch=True, max_epochs=1),
            load_from=None if road == 'init_cfg' else path,
            resume=road == 'resume',
            default_hooks=dict(checkpoint=None, logger=None),
        )

    with pytest.raises(CheckpointError, match='refused.*mkdir'):
        runner(PluginRunner).train()
    assert not (tmp_path / 'ran').exists()
    with contextlib.suppress(Exception):
        runner(Runner).train()
    assert (tmp_path / 'ran').exists()
