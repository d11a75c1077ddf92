import argparse
import io
import json
import os
import pickle
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import ConfigDict
from mmengine.logging import HistoryBuffer
from mmengine.optim.scheduler import OneCycleLR
from safetensors.torch import save_file
from torch import nn

from mmlinattn.checkpoints import CheckpointError, load_state_dict, read_checkpoint, save_checkpoint
from mmlinattn.checkpoints.safe_unpickle import PlainUnpickler
from mmlinattn.checkpoints.write import plain
from mmlinattn.utils import WriteError


class Runs:
    """Unpickling it calls a function."""

    def __init__(self, function, *args):
        self.call = function, args

    def __reduce__(self):
        return self.call


WEIGHT = torch.arange(6.0).reshape(2, 3)


@pytest.mark.parametrize(
    'section',
    ['state_dict', 'model', 'model_ema', 'net', 'model_state_dict', 'state_dict_ema', None],
)
def test_weights_are_found(tmp_path, section):
    weights = {'module.fc.weight': WEIGHT}
    torch.save({section: weights, 'epoch': 3} if section else weights, tmp_path / 'a.pth')
    state_dict, meta = load_state_dict(tmp_path / 'a.pth')
    assert list(state_dict) == ['fc.weight'] and meta == {}
    assert torch.equal(state_dict['fc.weight'], WEIGHT)


def test_model_is_preferred_to_its_average(tmp_path):
    torch.save(dict(model_ema=dict(a=WEIGHT + 1), model=dict(a=WEIGHT)), tmp_path / 'a.pth')
    assert torch.equal(load_state_dict(tmp_path / 'a.pth')[0]['a'], WEIGHT)


def test_old_file_format(tmp_path):
    torch.save(dict(a=WEIGHT), tmp_path / 'a.pth', _use_new_zipfile_serialization=False)
    assert torch.equal(load_state_dict(tmp_path / 'a.pth')[0]['a'], WEIGHT)


@pytest.mark.parametrize('old', [True, False])
def test_numpy_scalars_of_both_numpy_generations(tmp_path, old):
    """numpy 2 moved numpy.core to numpy._core; files carry the name of their day."""
    torch.save(
        dict(model=dict(a=WEIGHT), meta=dict(best=np.float32(0.5))),
        tmp_path / 'a.pth',
        _use_new_zipfile_serialization=False,
    )
    data = (tmp_path / 'a.pth').read_bytes()
    here, there = (b'numpy._core.', b'numpy.core.') if old else (b'numpy.core.', b'numpy._core.')
    (tmp_path / 'a.pth').write_bytes(data.replace(here, there))
    assert load_state_dict(tmp_path / 'a.pth')[1] == dict(best=0.5)


def test_classes_and_palette_become_dataset_meta(tmp_path):
    meta = dict(CLASSES=('cat', 'dog'), PALETTE=[[0, 0, 0], [1, 2, 3]], mmdet_version='2.25.0')
    torch.save(dict(state_dict=dict(a=WEIGHT), meta=meta), tmp_path / 'a.pth')
    expected = dict(
        mmdet_version='2.25.0',
        dataset_meta=dict(classes=('cat', 'dog'), palette=[[0, 0, 0], [1, 2, 3]]),
    )
    assert read_checkpoint(tmp_path / 'a.pth')['meta'] == expected
    meta = dict(CLASSES=None, dataset_meta=dict(classes=('a',)))
    torch.save(dict(state_dict=dict(a=WEIGHT), meta=meta), tmp_path / 'a.pth')
    assert load_state_dict(tmp_path / 'a.pth')[1] == dict(dataset_meta=dict(classes=('a',)))


def test_meta_keeps_only_plain_types():
    meta = dict(
        a=np.float64(1.5), b=np.bool_(True), c=torch.tensor([1, 2]), d=object(), e=[1, object()],
        f=argparse.Namespace(x=np.int32(3)), g=(None, 'x'), h={4: {5}},
    )  # fmt: skip
    found = plain(meta)
    assert found == dict(a=1.5, b=True, c=[1, 2], e=[1], f=dict(x=3), g=(None, 'x'), h={4: [5]})
    assert type(found['a']) is float and type(found['b']) is bool


@pytest.mark.parametrize('function', [os.system, os.mkdir, exec, eval, print])
@pytest.mark.parametrize('zipped', [True, False])
def test_code_is_refused_and_not_run(tmp_path, function, zipped):
    mark = tmp_path / 'ran'
    code = {os.system: f'mkdir {mark}', os.mkdir: str(mark), print: 'x'}.get(
        function, f'__import__("os").mkdir({str(mark)!r})'
    )
    torch.save(
        dict(model=dict(a=WEIGHT), evil=Runs(function, code)),
        tmp_path / 'a.pth',
        _use_new_zipfile_serialization=zipped,
    )
    with pytest.raises(
        CheckpointError, match=rf'a\.pth is refused.*{function.__name__} .* state_dict'
    ):
        load_state_dict(tmp_path / 'a.pth')
    assert not mark.exists()


def test_getattr_reaches_nothing(tmp_path):
    """MMEngine's schedulers pickle with getattr; here it gives out their functions only."""
    for owner, attribute in ((np.ndarray, 'tofile'), (HistoryBuffer, '__init__')):
        reach = Runs(getattr, owner, attribute)
        torch.save(dict(model=dict(a=WEIGHT), meta=dict(reach=reach)), tmp_path / 'a.pth')
        with pytest.raises(CheckpointError, match=r'a\.pth is refused.*getattr'):
            load_state_dict(tmp_path / 'a.pth')


# Pickles by hand: what a file can say beyond what pickle writes.
def _text(value: str) -> bytes:
    return b'X' + struct.pack('<I', len(value)) + value.encode()


def _name(module: str, name: str) -> bytes:
    return f'c{module}\n{name}\n'.encode()


def _call(function: bytes, *arguments: bytes) -> bytes:
    return function + b'(' + b''.join(arguments) + b'tR'


POINTER = _call(_name('_codecs', 'encode'), _text('AAAAAAAA'), _text('latin1'))
OBJECTS = _call(_name('numpy', 'dtype'), _text('O8'))
NUMBERS = _call(_name('numpy', 'dtype'), _text('f8'))
# A type of bytes whose state makes fields of it.
STATE = b'(K\x03' + _text('|') + b'N(' + _text('a') + b't}' + _text('a') + b'(' + NUMBERS
FIELDS = _call(_name('numpy', 'dtype'), _text('S8')) + STATE + b'K\x00tsK\x08K\x01K\x11tb'
# A number whose state says that it holds pointers, and a text of another size than its type.
STATE_OF = b'(K\x03' + _text('<') + b'NNNJ%bJ%bK%ctb'
FLAGS = NUMBERS + STATE_OF % (*[struct.pack('<i', -1)] * 2, 1)
SIZE = _call(_name('numpy', 'dtype'), _text('U2'))
SIZE += STATE_OF % (struct.pack('<i', -(2**24)), struct.pack('<i', 4), 8)
EMPTY = _call(
    _name('numpy.core.multiarray', '_reconstruct'), _name('numpy', 'ndarray'), b'(K\x00t', POINTER
)
KEPT = _call(
    _name('__builtin__', 'getattr'),
    _name('mmengine.logging.history_buffer', 'HistoryBuffer'),
    _text('mean'),
)
BY_HAND = {
    # Arrays of objects are arrays of pointers, here of the file's choice.
    'buffer': _call(_name('numpy', 'ndarray'), b'(K\x01t', OBJECTS, POINTER),
    'text': _call(_name('numpy', 'ndarray'), b'(K\x01t', _text('O8'), POINTER),
    'scalar': _call(_name('numpy.core.multiarray', 'scalar'), OBJECTS, POINTER),
    'array': EMPTY + b'(K\x01(K\x01t' + OBJECTS + b'\x89' + POINTER + b'tb',
    'flags': EMPTY + b'(K\x01(K\x01t' + FLAGS + b'\x89' + POINTER + b'tb',
    'size': _call(_name('numpy.core.multiarray', 'scalar'), SIZE, POINTER),
    'fields': EMPTY + b'(K\x01(K\x01t' + FIELDS + b'\x89' + POINTER + b'tb',
    # Setting things on classes, and calling what is there to be kept.
    'class': _name('argparse', 'Namespace') + b'N}' + _text('__eq__') + _text('broken') + b's\x86b',
    'reader': _name('_codecs', 'encode') + b'}' + _text('function') + b'Nsb',
    'kept': _call(_name('torch._tensor', '_rebuild_from_type_v2'), KEPT, b'Nt'[:1], b')', b'}'),
}


@pytest.mark.parametrize('kind', BY_HAND)
def test_pickles_by_hand_are_refused(tmp_path, kind):
    """Some of them ended the interpreter before."""
    pickled = b'\x80\x02' + BY_HAND[kind] + b'.'
    with zipfile.ZipFile(tmp_path / 'a.pth', 'w') as archive:
        archive.writestr('archive/data.pkl', pickled)
        archive.writestr('archive/version', '3\n')
        archive.writestr('archive/byteorder', 'little')
    with pytest.raises(CheckpointError, match=r'a\.pth is (refused|incomplete)'):
        load_state_dict(tmp_path / 'a.pth')
    with pytest.raises((pickle.UnpicklingError, TypeError, AttributeError)):
        PlainUnpickler(io.BytesIO(pickled)).load()
    assert argparse.Namespace(a=1) == argparse.Namespace(a=1)
    torch.save(dict(model=dict(a=WEIGHT), meta=dict(b=np.float32(2))), tmp_path / 'b.pth')
    assert torch.equal(load_state_dict(tmp_path / 'b.pth')[0]['a'], WEIGHT), 'the reader is whole'


@pytest.mark.parametrize('value', [
    np.arange(6.0).reshape(2, 3), np.asfortranarray(np.arange(6).reshape(2, 3)),
    np.array(['ab', 'c']), np.array([b'ab']), np.array(True), np.zeros((0, 3)),
    np.arange(3, dtype='>i2'), np.array([1 + 2j]), np.float16(0.5),
    np.uint8(3), np.arange(3, dtype='>u4'), np.str_('x'), np.str_(''),
], ids=repr)  # fmt: skip
def test_numpy_values_come_back_as_they_were(tmp_path, value):
    for protocol in (2, 4, 5):
        read = PlainUnpickler(io.BytesIO(pickle.dumps([value], protocol))).load()[0]
        assert isinstance(read, type(value)) and read.dtype.kind == value.dtype.kind
        np.testing.assert_array_equal(read, value)
    for _ in range(2):  # what was read can be saved and read again
        torch.save(dict(a=WEIGHT, meta=dict(value=read)), tmp_path / 'a.pth')
        read = read_checkpoint(tmp_path / 'a.pth')['meta']['value']
        np.testing.assert_array_equal(read, value)


def test_other_numpy_values_are_refused(tmp_path):
    for value in (np.datetime64('2026-01-01'), np.array([print])):
        with pytest.raises(pickle.UnpicklingError):
            PlainUnpickler(io.BytesIO(pickle.dumps(value))).load()
        torch.save(dict(a=WEIGHT, meta=value), tmp_path / 'a.pth')
        with pytest.raises(CheckpointError, match=r'a\.pth is refused'):
            read_checkpoint(tmp_path / 'a.pth')


def test_state_of_a_training(tmp_path):
    """What MMEngine's checkpoints hold; a scheduler and a log go on with it."""
    log = HistoryBuffer([1.0, 2.0], [1, 1])
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    schedulers = [OneCycleLR(optimizer, eta_max=1.0, total_steps=9) for _ in range(2)]
    schedulers[0].step()
    meta = dict(colours=ConfigDict(a=1), path=Path('a/b'), seen={1}, ends=slice(1, 2), empty=b'')
    meta.update(args=argparse.Namespace(lr=1e-3, data='in1k'), best=np.float64(0.5))
    content = dict(
        state_dict=dict(a=WEIGHT), meta=meta, message_hub=dict(loss=log, call=HistoryBuffer.mean),
        optimizer=optimizer.state_dict(), param_schedulers=[schedulers[0].state_dict()],
    )  # fmt: skip
    torch.save(content, tmp_path / 'a.pth')
    before = set(torch.serialization.get_safe_globals())
    content = read_checkpoint(tmp_path / 'a.pth')
    assert set(torch.serialization.get_safe_globals()) == before
    assert content['meta'] == meta
    read = content['message_hub']['loss']
    read.update(3.0)
    assert type(read) is HistoryBuffer and read.mean() == 2 and read.statistics('max') == 3
    schedulers[1].load_state_dict(content['param_schedulers'][0])
    assert schedulers[1].anneal_func is OneCycleLR._annealing_cos


@pytest.mark.parametrize('right, wrong', [('safetensors', 'bin'), ('pth', 'safetensors')])
def test_the_content_tells_the_format(tmp_path, right, wrong):
    save_checkpoint(tmp_path / f'a.{right}', {'a': torch.zeros(40)}, dict(epoch=1))
    (tmp_path / f'a.{right}').rename(tmp_path / f'a.{wrong}')
    state_dict, meta = load_state_dict(tmp_path / f'a.{wrong}')
    assert [*state_dict] == ['a'] and meta == dict(epoch=1)


@pytest.mark.filterwarnings('ignore:.*torch.jit')
def test_files_of_other_kinds(tmp_path):
    torch.jit.script(torch.nn.Linear(2, 2)).save(tmp_path / 'a.pth')
    with pytest.raises(CheckpointError, match=r'a\.pth is refused: .* code of TorchScript'):
        load_state_dict(tmp_path / 'a.pth')
    (tmp_path / 'a.pth').unlink()
    np.savez(tmp_path / 'a.npz', weight=np.zeros(3))
    (tmp_path / 'd.pth').write_bytes(b'{"info":{"year":2026},"images":[]}')
    (tmp_path / 'e.pth').write_bytes(b'<html>not found</html>')
    (tmp_path / 'f.pth').write_bytes(pickle.dumps([1, 2], 2))
    for path in tmp_path.iterdir():
        with pytest.raises(CheckpointError, match=f'{path.name} is incomplete or no checkpoint'):
            load_state_dict(path)


@pytest.mark.parametrize('suffix', ['onnx', 'pt2'])
def test_an_exported_file_is_named(tmp_path, suffix):
    (tmp_path / f'c.{suffix}').write_bytes(b'\x08\x0a')
    with pytest.raises(CheckpointError, match='is an exported file, its checkpoint is needed') as e:
        load_state_dict(tmp_path / f'c.{suffix}')
    assert ('exported .onnx files' in str(e.value)) == (suffix == 'pt2')


def test_no_tensors(tmp_path):
    torch.save(dict(meta=dict(epoch=1), state_dict={}), tmp_path / 'a.pth')
    with pytest.raises(CheckpointError, match=r'a\.pth has no tensors'):
        load_state_dict(tmp_path / 'a.pth')


@pytest.mark.parametrize('dtype, meta', [('F4', '{}'), ('F32', '[' * 10**5)])
def test_safetensors_that_the_library_or_json_cannot_read(tmp_path, dtype, meta):
    tensor = dict(dtype=dtype, shape=[2], data_offsets=[0, 1 if dtype == 'F4' else 8])
    header = json.dumps(dict(a=tensor, __metadata__=dict(meta=meta))).encode()
    data = len(header).to_bytes(8, 'little') + header + bytes(tensor['data_offsets'][1])
    (tmp_path / 'a.safetensors').write_bytes(data)
    with pytest.raises(CheckpointError, match='a.safetensors is incomplete or no checkpoint'):
        load_state_dict(tmp_path / 'a.safetensors')


@pytest.mark.parametrize(
    'value',
    [
        WEIGHT.to_sparse(), WEIGHT.to_sparse_csr(), WEIGHT.to('meta'),
        torch.quantize_per_tensor(WEIGHT, 0.1, 0, torch.quint8),
    ],
)  # fmt: skip
def test_tensors_that_no_model_loads(tmp_path, value):
    torch.save(dict(state_dict=dict(a=WEIGHT, odd=value)), tmp_path / 'a.pth')
    with pytest.raises(CheckpointError, match=r'a\.pth has sparse, nested.*: odd; save them as'):
        load_state_dict(tmp_path / 'a.pth')


def test_odd_meta_information(tmp_path):
    meta = dict(CLASSES=('a',), dataset_meta=[1, 2])
    torch.save(dict(state_dict=dict(a=WEIGHT), meta=meta), tmp_path / 'a.pth')
    assert load_state_dict(tmp_path / 'a.pth')[1] == dict(dataset_meta=dict(classes=('a',)))
    meta['own'] = meta
    torch.save(dict(state_dict=dict(a=WEIGHT), meta=meta), tmp_path / 'a.pth')
    with pytest.raises(CheckpointError, match='a.pth has a meta entry that contains itself'):
        load_state_dict(tmp_path / 'a.pth')


@pytest.mark.filterwarnings('ignore:Detected pickle protocol')
def test_other_pickle_protocols_and_an_index_are_named(tmp_path):
    torch.save(dict(a=WEIGHT), tmp_path / 'a.pth', pickle_protocol=4)
    with pytest.raises(CheckpointError, match='a.pth has a pickle protocol'):
        load_state_dict(tmp_path / 'a.pth')
    index = tmp_path / 'model.safetensors.index.json'
    index.write_text('{"weight_map": {}}')
    with pytest.raises(CheckpointError, match='index.json names the parts'):
        load_state_dict(index)


def test_foreign_safetensors(tmp_path):
    save_file({'a': WEIGHT}, tmp_path / 'a.safetensors', metadata=dict(format='pt'))
    state_dict, meta = load_state_dict(tmp_path / 'a.safetensors')
    assert torch.equal(state_dict['a'], WEIGHT) and meta == dict(format='pt')


@pytest.mark.parametrize('suffix', ['pth', 'pt', 'safetensors'])
def test_saved_file_reads_back(tmp_path, suffix):
    path = tmp_path / 'new' / f'a.{suffix}'
    tied = torch.rand(1, 4, 5, 5).to(memory_format=torch.channels_last)
    view = torch.zeros(1_000_000)[:2]  # is saved without the rest of its storage
    meta = dict(epoch=3, dataset_meta=dict(classes=['a', 'b']))
    state = dict(a=tied, b=tied, c=WEIGHT[:, 1], d=view)
    save_checkpoint(path, state, dict(meta, junk=object()))
    assert path.stat().st_size < 10_000
    state_dict, read = load_state_dict(path)
    assert read == meta
    assert torch.equal(state_dict['a'], tied) and torch.equal(state_dict['c'], WEIGHT[:, 1])
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize('suffix', ['pth', 'safetensors'])
def test_failed_write_leaves_the_folder_as_it_was(tmp_path, monkeypatch, suffix):
    path = tmp_path / f'a.{suffix}'
    save_checkpoint(path, dict(a=WEIGHT), {})
    before = path.read_bytes()

    def full_disk(source, target):
        raise OSError(28, 'No space left on device')

    monkeypatch.setattr(os, 'replace', full_disk)
    with pytest.raises(WriteError, match='No space left on device; older files are'):
        save_checkpoint(path, dict(a=WEIGHT + 1), {})
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_only_checkpoint_names_and_regular_files_are_written(tmp_path):
    with pytest.raises(CheckpointError, match='must end in one of'):
        save_checkpoint(tmp_path / 'a.txt', dict(a=WEIGHT), {})
    (tmp_path / 'folder.pth').mkdir()
    with pytest.raises(WriteError, match='it is a folder'):
        save_checkpoint(tmp_path / 'folder.pth', dict(a=WEIGHT), {})
