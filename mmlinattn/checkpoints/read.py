"""Reading of checkpoints from any source without running code that they contain."""

import json
import pickle
import re
import warnings
import zipfile
from collections.abc import Mapping
from typing import Any, BinaryIO, Dict, Tuple, TypeGuard

import safetensors.torch
import torch
from mmengine.runner import CheckpointLoader
from torch import Tensor

from ..utils.pretrained import SAFE
from ..utils.suggest import shorten
from .checkpoint_uri import open_source
from .errors import CheckpointError
from .safe_unpickle import safe_globals
from .write import PathLike, plain

# MMEngine and MMCV write ``state_dict``. Scripts based on DeiT (RALA, SMCA, ...) write ``model``
# and sometimes the moving average ``model_ema``, ViL writes ``net``, TimeSformer ``model_state``,
# PyTorch's tutorials ``model_state_dict``.
# ``model`` comes before ``model_ema`` because the accuracies published with DeiT's scripts are
# those of ``model``.
SECTIONS = (
    'state_dict', 'model', 'model_ema', 'net', 'model_state', 'model_state_dict', 'state_dict_ema',
)  # fmt: skip


def read_checkpoint(source: PathLike) -> Dict[str, Any]:
    """Read a checkpoint: weights, meta information and training state.

    Args:
        source: a path, a URL (``https://``, ``file://``, see :func:`download`), a name of
            MMEngine's model zoos (``torchvision://resnet50``, ``open-mmlab://...``), of the package
            (``mmlinattn://...``, see :func:`package_weights`), or a URI of one of MMEngine's file
            backends. The file has the format of ``torch.save`` or safetensors. It may hold
            tensors, plain types, numpy numbers and arrays, ``argparse.Namespace``, and the
            configs, logs and schedulers of MMEngine.

    Returns:
        the content in MMEngine's layout, on the CPU: ``state_dict``, ``meta``, and the remaining
        entries (``optimizer``, ``message_hub``, ...). The weights are taken from ``state_dict``,
        ``model``, ``model_ema``, ``net`` or the top level, whichever comes first, and lose the
        prefix ``module.``.
        ``meta['config']`` is omitted, because MMEngine would run it as Python when resuming. The
        old ``CLASSES`` and ``PALETTE`` become ``meta['dataset_meta']``.

    Raises:
        FileNotFoundError: no such file.
        CheckpointError: the download fails, or the file is incomplete, damaged, no checkpoint,
            has no tensors or sparse ones, or needs to run code to be read.
    """
    source = re.sub(f'^({SAFE})+', '', str(source))
    with open_source(source) as file:
        is_safetensors = file.read(9)[8:] == b'{'  # after the 8 bytes of the header's length
        file.seek(0)
        content = (_read_safetensors if is_safetensors else _read_pickle)(file, source)
    content = dict(content) if isinstance(content, Mapping) else {}
    for section in SECTIONS:
        weights = content.get(section)
        if _has_tensors(weights):
            break
    else:
        weights, content = content, dict(meta=content.get('meta'))
    if not _has_tensors(weights):
        others = [str(name) for name, value in weights.items() if _has_tensors(value)]
        but = f', but under {", ".join(others)}: save one of them as state_dict' if others else ''
        raise CheckpointError(
            f'{source} has no tensors, neither at top level nor under {SECTIONS}{but}'
        )
    odd = [
        str(name)
        for name, x in weights.items()
        if isinstance(x, Tensor)
        and (x.layout is not torch.strided or x.is_nested or x.is_meta or x.is_quantized)
    ]
    if odd:
        raise CheckpointError(
            f'{source} has sparse, nested, quantised or empty (meta) tensors: {shorten(odd)}; '
            'save them as ordinary tensors'
        )
    meta = content.get('meta')
    meta = {k: v for k, v in meta.items() if k != 'config'} if isinstance(meta, Mapping) else {}
    old = {name.lower(): meta.pop(name, None) for name in ('CLASSES', 'PALETTE')}
    old = {name: value for name, value in old.items() if value is not None}
    if old:
        given = meta.get('dataset_meta')
        meta['dataset_meta'] = dict(old, **(given if isinstance(given, Mapping) else {}))
    if source.startswith('mmcls://'):
        # MMEngine applies the same rule to this zoo of classifiers.
        weights = {k[9:]: v for k, v in weights.items() if k.startswith('backbone.')}
    # MMEngine removes the prefix of DataParallel, but not where ``init_cfg`` has another one.
    if any(str(name).startswith('module.') for name in weights):
        weights = {re.sub(r'^module\.', '', str(name)): value for name, value in weights.items()}
    return dict(content, state_dict=weights, meta=meta)


@CheckpointLoader.register_scheme(prefixes=(SAFE, 'mmlinattn://'), force=True)
def load_from_safe_source(filename: str, map_location: Any = None) -> Dict[str, Any]:
    """Let MMEngine read ``safe://SOURCE`` and ``mmlinattn://NAME`` by :func:`read_checkpoint`."""
    return read_checkpoint(filename)


def load_state_dict(source: PathLike) -> Tuple[Dict[str, Tensor], Dict[str, Any]]:
    """Read the weights and the meta information of a checkpoint.

    Args:
        source: see :func:`read_checkpoint`.

    Returns:
        name -> tensor, on the CPU; and ``meta`` reduced to plain types.

    Raises:
        FileNotFoundError, CheckpointError: see :func:`read_checkpoint`.

    Example:
        >>> import os, tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), 'model.pth')
        >>> torch.save(dict(model={'module.fc.weight': torch.zeros(2, 3)}), path)
        >>> state_dict, meta = load_state_dict(path)
        >>> {name: tuple(value.shape) for name, value in state_dict.items()}
        {'fc.weight': (2, 3)}
    """
    content = read_checkpoint(source)
    try:
        return weights_of(content, source), plain(content['meta'])
    except RecursionError:
        raise CheckpointError(f'{source} has a meta entry that contains itself') from None


def weights_of(content: Mapping, source: PathLike) -> Dict[str, Tensor]:
    """Return the weights from :func:`read_checkpoint`, tensors alone."""
    weights = content['state_dict']
    tensors = {k: v for k, v in weights.items() if isinstance(v, Tensor)}
    if len(tensors) < len(weights):
        rest = [str(name) for name in weights if name not in tensors]
        warnings.warn(f'{source}: ignored entries that are no tensors: {rest[:5]}', stacklevel=2)
    return {str(k): v for k, v in tensors.items()}


def damaged_part(file: BinaryIO) -> str:
    """Return the name of the first zip member with a wrong checksum, which torch ignores, or ''.

    A TorchScript program, which torch 2.4 would load, raises pickle.UnpicklingError.
    """
    if not zipfile.is_zipfile(file):
        return ''
    with zipfile.ZipFile(file) as archive:
        if any(name.endswith('/constants.pkl') for name in archive.namelist()):
            raise pickle.UnpicklingError('TorchScript must not be called')
        has_checksums = any(part.CRC for part in archive.infolist())
        return (archive.testzip() if has_checksums else None) or ''


def _has_tensors(weights: Any) -> TypeGuard[Mapping]:
    return isinstance(weights, Mapping) and any(isinstance(v, Tensor) for v in weights.values())


def _read_pickle(file: BinaryIO, name: str) -> Any:
    try:
        damaged = damaged_part(file)
        file.seek(0)
        if not damaged:
            with safe_globals():
                return torch.load(file, map_location='cpu', weights_only=True)
    except Exception as error:  # RuntimeError, OSError, EOFError, KeyError, ... of damaged files
        reason = str(error)
        named = re.search(r'GLOBAL (\S+) (?:was not|whose module)|(\S+) must not be called', reason)
        if isinstance(error, pickle.UnpicklingError) and named:
            raise CheckpointError(
                f'{name} is refused: to read it the code of {named[1] or named[2]} would have to '
                "run; save the model's state_dict() in its place"
            ) from error
        raise _unreadable(file, name, error) from error
    raise CheckpointError(f'{name} is damaged: the content of {damaged} has changed')


def _read_safetensors(file: BinaryIO, name: str) -> Dict[str, Any]:
    data = file.read()
    try:
        weights = safetensors.torch.load(data)
        # The first 8 bytes are the length of the header, which holds the meta information.
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], 'little')])
        meta = header.get('__metadata__', {})
        return dict(state_dict=weights, meta=json.loads(meta['meta']) if 'meta' in meta else meta)
    except Exception as error:  # SafetensorError, ValueError, KeyError of types, RecursionError
        raise _unreadable(file, name, error) from error


def _unreadable(file: BinaryIO, name: str, error: Exception) -> CheckpointError:
    suffix = name.lower().rpartition('.')[2]
    if suffix in ('onnx', 'pt2'):
        only = '; test and predict also read exported .onnx files' * (suffix == 'pt2')
        return CheckpointError(f'{name} is an exported file, its checkpoint is needed here{only}')
    if name.endswith('.index.json'):
        return CheckpointError(
            f'{name} names the parts of a checkpoint: join their tensors in one file first '
            '(docs/checkpoints.md)'
        )
    if 'Unsupported operand 149' in str(error):  # a frame, of protocol 4 and later
        return CheckpointError(
            f"{name} has a pickle protocol that torch's safe reader does not read: save it again "
            'by torch.save without pickle_protocol'
        )
    lines = str(error).strip().splitlines()
    reason = f': {lines[0].split(". ")[0][:120]}' if lines else ''
    again = f'; remove {file.name} to download it again' if name.startswith('https://') else ''
    return CheckpointError(
        f'{name} is incomplete or no checkpoint ({type(error).__name__}{reason}){again}'
    )
