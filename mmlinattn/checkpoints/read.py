"""Reading of checkpoints from any source without running code that they contain."""

import io
import json
import pickle
import re
import warnings
import zipfile
from collections.abc import Mapping
from typing import Any, BinaryIO, Dict, Tuple, TypeGuard
from urllib.parse import urlsplit

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from .checkpoint_uri import open_source
from .errors import CheckpointError
from .meta import plain_meta
from .safe_unpickle import safe_globals, unwrap
from .write import CHECK_SUM, SAFETENSORS, PathLike, check_sum

# MMEngine and MMCV write ``state_dict``. Scripts based on DeiT (RALA, SMCA, ...) write ``model``
# and sometimes the moving average ``model_ema``, ViL writes ``net``, TimeSformer ``model_state``.
# ``model`` comes before ``model_ema`` because the accuracies published with DeiT's scripts are
# those of ``model``.
SECTIONS = ('state_dict', 'model', 'model_ema', 'net', 'model_state')


def read_checkpoint(source: PathLike) -> Dict[str, Any]:
    """Read a checkpoint: weights, meta information and training state.

    Args:
        source: a path, a URL (``https://``, ``file://``, see :func:`download`), a name of
            MMEngine's model zoos (``torchvision://resnet50``, ``open-mmlab://...``), of the package
            (``mmlinattn://...``, see :func:`package_weights`), or a URI of
            one of MMEngine's file backends. A name that ends in ``.safetensors`` is read in that
            format, any other in the format of ``torch.save``. The unpickler accepts tensors,
            plain types, numpy numbers and arrays, ``argparse.Namespace``, and the logs and
            schedulers of MMEngine. It rejects everything else.

    Returns:
        the content in MMEngine's layout, on the CPU: ``state_dict``, ``meta``, and the remaining
        entries (``optimizer``, ``message_hub``, ...). The weights are taken from ``state_dict``,
        ``model``, ``model_ema``, ``net`` or the top level, whichever comes first.
        ``meta['config']`` is omitted, because MMEngine would run it as Python when resuming.

    Raises:
        FileNotFoundError: no such file.
        CheckpointError: the download fails, or the file is incomplete, damaged, no checkpoint,
            has no tensors, or needs to run code to be read.
    """
    name = str(source)
    with open_source(source) as file:
        if urlsplit(name).path.endswith(SAFETENSORS):
            content = _read_safetensors(file, name)
        else:
            content = _read_pickle(file, name)
    content = dict(content) if isinstance(content, Mapping) else {}
    for section in SECTIONS:
        weights = content.get(section)
        if _has_tensors(weights):
            break
    else:
        weights, content = content, dict(meta=content.get('meta'))
    if not _has_tensors(weights):
        raise CheckpointError(f'{name} has no tensors, neither at top level nor under {SECTIONS}')
    meta = content.get('meta')
    meta = {k: v for k, v in meta.items() if k != 'config'} if isinstance(meta, Mapping) else {}
    if name.startswith('mmcls://'):
        # MMEngine applies the same rule to this zoo of classifiers.
        weights = {k[9:]: v for k, v in weights.items() if k.startswith('backbone.')}
    return dict(content, state_dict=weights, meta=meta)


def load_state_dict(source: PathLike) -> Tuple[Dict[str, Tensor], Dict[str, Any]]:
    """Read the weights and the meta information of a checkpoint.

    Args:
        source: see :func:`read_checkpoint`.

    Returns:
        name -> tensor, on the CPU, without the prefix ``module.``; and ``meta`` reduced to plain
        types, with the old ``CLASSES`` and ``PALETTE`` as
        ``dataset_meta=dict(classes=..., palette=...)``.

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
    return weights_of(content, source), plain_meta(content['meta'])


def weights_of(content: Mapping, source: PathLike) -> Dict[str, Tensor]:
    """Return the weights from :func:`read_checkpoint` without the prefix ``module.``."""
    weights = content['state_dict']
    tensors = {k: v for k, v in weights.items() if isinstance(v, Tensor)}
    if len(tensors) < len(weights):
        rest = [str(name) for name in weights if name not in tensors]
        warnings.warn(f'{source}: ignored entries that are no tensors: {rest[:5]}', stacklevel=2)
    return {re.sub(r'^module\.', '', str(k)): v for k, v in tensors.items()}


def _has_tensors(weights: Any) -> TypeGuard[Mapping]:
    return isinstance(weights, Mapping) and any(isinstance(v, Tensor) for v in weights.values())


def _read_pickle(file: BinaryIO, name: str) -> Any:
    try:
        other = _other_archive(file)
        if other:
            raise CheckpointError(f'{name} is {other}')
        damaged = damaged_part(file)
        if damaged:
            raise CheckpointError(f'{name} is damaged: the content of {damaged} has changed')
        file.seek(0)
        with safe_globals():
            return unwrap(torch.load(file, map_location='cpu', weights_only=True))
    except CheckpointError:
        raise
    except Exception as error:
        reason = str(error)
        named = re.search(r'GLOBAL (\S+) (?:was not|whose module)|(\S+) must not be called', reason)
        if isinstance(error, pickle.UnpicklingError) and named:
            code = named[1] or named[2]
            raise CheckpointError(
                f'{name} is refused: to read it the code of {code} would have to run; save the '
                "model's state_dict() in its place"
            ) from error
        if _has_safetensors_header(file):
            raise CheckpointError(
                f'{name} is a safetensors file: give it the suffix .safetensors'
            ) from error
        # torch raises RuntimeError, OSError, EOFError, KeyError, ... on damaged files.
        what = _other_file(name) or f'incomplete or no checkpoint{_because(error)}'
        raise CheckpointError(f'{name} is {what}') from error


def damaged_part(file: BinaryIO) -> str:
    """Return the name of the first zip member with a wrong checksum, or ''.

    ``torch.load`` does not verify the checksums.
    """
    file.seek(0)
    if not zipfile.is_zipfile(file):
        return ''
    with zipfile.ZipFile(file) as archive:
        for part in archive.infolist():
            # A CRC of 0 means that the file was written without checksums.
            if part.CRC:
                try:
                    with archive.open(part) as content:
                        while content.read(2**20):
                            pass
                except zipfile.BadZipFile:
                    return part.filename
    return ''


def _has_safetensors_header(file: BinaryIO) -> bool:
    size = file.seek(0, 2)
    file.seek(0)
    length = int.from_bytes(file.read(8), 'little')
    if not 2 <= length <= size - 8:
        return False
    try:
        return isinstance(json.loads(file.read(length)), dict)
    except ValueError:
        return False


def _is_zip_of_torch(file: BinaryIO) -> bool:
    if not zipfile.is_zipfile(file):
        return False
    with zipfile.ZipFile(file) as archive:
        return any(name.endswith('/data.pkl') for name in archive.namelist())


def _other_file(name: str) -> str:
    """Return what a file is by its name, and the cure; '' if it may be a checkpoint."""
    if name.endswith(('.onnx', '.xml', '.pt2')):
        return 'an exported file: name the checkpoint that it was made from'
    if name.endswith(('.py', '.yml', '.yaml', '.json')):
        return 'a config: name the checkpoint after the config'
    return ''


def _other_archive(file: BinaryIO) -> str:
    """Return what an archive is, and the cure; '' if it may be a checkpoint."""
    if not zipfile.is_zipfile(file):
        return ''
    with zipfile.ZipFile(file) as archive:
        parts = archive.namelist()
    file.seek(0)
    if parts and all(part.endswith('.npy') for part in parts):
        return 'an archive of NumPy: save its arrays as tensors by torch.save'
    if any(part.endswith('/constants.pkl') for part in parts):
        return "a TorchScript program: save the model's state_dict() in its place"
    return ''


def _because(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    reason = f': {lines[0].split(". ")[0][:120]}' if lines else ''
    return f' ({type(error).__name__}{reason})'


def _read_safetensors(file: BinaryIO, name: str) -> Dict[str, Any]:
    data = file.read()
    try:
        weights = safetensors.torch.load(data)
        # The first 8 bytes are the length of the header, which holds the meta information.
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], 'little')])
    except (SafetensorError, ValueError) as error:
        if _is_zip_of_torch(io.BytesIO(data)):
            raise CheckpointError(f'{name} is a file of torch: give it the suffix .pth') from error
        raise CheckpointError(f'{name} is incomplete or no checkpoint{_because(error)}') from error
    meta = header.get('__metadata__', {})
    ours = 'meta' in meta  # in such a file any sha256 is the checksum, even if its key is damaged
    sums = {
        value
        for key, value in meta.items()
        if key == CHECK_SUM or (ours and re.fullmatch('[0-9a-f]{64}', value))
    }
    if sums and sums != {check_sum(weights)}:
        raise CheckpointError(f'{name} is damaged: its content has changed')
    try:
        own = json.loads(meta['meta'])
    except (KeyError, json.JSONDecodeError):
        own = None
    return dict(state_dict=weights, meta=own if isinstance(own, dict) else meta)
