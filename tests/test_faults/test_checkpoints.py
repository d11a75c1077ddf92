"""A damaged checkpoint is refused, or its weights are those that were written."""

import copy
import json
import random
import warnings

import pytest
import torch
from torch import nn

from mmlinattn.checkpoints import CheckpointError, load_checkpoint, save_checkpoint
from tests.test_faults.damage import damaged_bytes, seeds, try_all

pytestmark = pytest.mark.long


def model():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 4), nn.Linear(4, 2))


@pytest.fixture(scope='module')
def trained():
    torch.manual_seed(1)
    found = model()
    for value in found.state_dict().values():
        value.copy_(torch.randn(value.shape) * 9)
    return found.state_dict()


def write(kind, path, state):
    meta = dict(epoch=3, dataset_meta=dict(classes=('a', 'b')))
    if kind == 'legacy':
        content = dict(state_dict=state, meta=meta)
        torch.save(content, path, _use_new_zipfile_serialization=False)
    elif kind == 'training':
        optimizer = dict(state={0: dict(step=torch.ones(3))}, param_groups=[dict(lr=0.1)])
        torch.save(dict(state_dict=state, meta=meta, optimizer=optimizer), path)
    else:
        save_checkpoint(path, state, meta)
    if kind == 'safetensors':  # its header has another order at each run
        data = path.read_bytes()
        end = 8 + int.from_bytes(data[:8], 'little')
        header = json.dumps(json.loads(data[8:end]), sort_keys=True, separators=(',', ':'))
        path.write_bytes(data[:8] + header.encode().ljust(end - 8) + data[end:])


def outcome(path, state, exact=True):
    """Loads it; what came of it."""
    target = model()
    before = copy.deepcopy(target.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        try:
            load_checkpoint(target, path)
        except CheckpointError as error:
            assert str(error).strip() and str(path) in str(error), repr(error)
            now = target.state_dict()
            assert all(torch.equal(now[k], v) for k, v in before.items()), 'refused, but changed'
            return 'refused'
    now = target.state_dict()
    for name, value in state.items():
        same = torch.equal(now[name], value)
        assert same or not exact, f'{name} is not what was written'
        if not same:
            return 'loaded, changed'
    return 'loaded as written'


@pytest.mark.parametrize('kind', ['ours', 'training', 'safetensors', 'legacy'])
def test_any_byte(kind, trained, tmp_path):
    path = tmp_path / ('a.safetensors' if kind == 'safetensors' else 'a.pth')
    write(kind, path, trained)
    data = path.read_bytes()

    def case(seed):
        path.write_bytes(damaged_bytes(data, random.Random(seed)))
        # These have no check sums: their numbers may change unseen.
        return outcome(path, trained, exact=kind not in ('legacy', 'safetensors'))

    try_all(case, seeds(short=60))


@pytest.mark.parametrize(
    'kind, fits',
    [(torch.float16, True), (torch.float64, True), (torch.int8, False), (torch.complex64, False)],
)
@pytest.mark.parametrize('suffix', ['pth', 'safetensors'])
def test_types(suffix, kind, fits, trained, tmp_path):
    """Numbers of another precision are loaded, those of another kind are refused."""
    path, state = tmp_path / f'a.{suffix}', dict(trained)
    state['0.weight'] = trained['0.weight'].to(kind)
    save_checkpoint(path, state, {})
    if fits:
        state['0.weight'] = state['0.weight'].to(torch.float32)
    assert outcome(path, state) == ('loaded as written' if fits else 'refused')
