"""Reads checkpoints, from wherever they come, without ever running code that they carry."""

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
from .safe_unpickle import harmless_globals, unwrap
from .sharded import check_shards, filled, is_sharded
from .write import CHECK_SUM, SAFETENSORS, PathLike, check_sum

# MMEngine and MMCV write ``state_dict``, DeiT's scripts (RALA, SMCA, ...) ``model`` and perhaps
# the moving average ``model_ema`` beside it, ViL's ``net``. Published accuracies of DeiT's are of
# ``model``.
SECTIONS = ('state_dict', 'model', 'model_ema', 'net')


def read_checkpoint(source: PathLike, fill: bool = True) -> Dict[str, Any]:
    """Read a whole checkpoint: weights, meta information, and the state of a training.

    Args:
        source: a path, an address (``https://``, ``file://``, see :func:`download`), a name of
            MMEngine's model zoos (``torchvision://resnet50``, ``open-mmlab://...``), or an
            address of one of MMEngine's file backends. A name that ends in ``.safetensors`` is
            read as such, any other as written by ``torch.save``, with an unpickler that knows
            tensors, plain types, numpy numbers and arrays, ``argparse.Namespace`` and the logs
            and schedulers of MMEngine, and refuses the rest.
        fill: of a checkpoint in shards (:func:`save_sharded`) read these, too. Otherwise they are
            only compared with what was written, and their tensors have no values (meta device).

    Returns:
        the content as MMEngine knows it, on the CPU: ``state_dict`` (looked for there, then under
        ``model``, ``model_ema``, ``net``, then at top level), ``meta``, and what else there is
        (``optimizer``, ``message_hub``, ...). ``meta['config']``, which MMEngine would run as
        Python when resuming, is left out.

    Raises:
        FileNotFoundError: no such file.
        CheckpointError: no download, an incomplete or damaged file, no checkpoint, one that needs
            to run code to be read, or one without tensors.
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
        # MMEngine's own rule for this zoo of classifiers.
        weights = {k[9:]: v for k, v in weights.items() if k.startswith('backbone.')}
    content = dict(content, state_dict=weights, meta=meta)
    if is_sharded(content):
        check_shards(source, content)
    return filled(source, content) if fill else content


def load_state_dict(source: PathLike) -> Tuple[Dict[str, Tensor], Dict[str, Any]]:
    """Read the weights and the meta information of a checkpoint.

    Args:
        source: see :func:`read_checkpoint`.

    Returns:
        name -> tensor, on the CPU, without ``module.`` in front; and the file's ``meta`` reduced
        to plain types, with the old ``CLASSES`` and ``PALETTE`` as
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
    """The weights of what :func:`read_checkpoint` returned, without ``module.`` in front."""
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
        damaged = damaged_part(file)
        if damaged:
            raise CheckpointError(f'{name} is damaged: the content of {damaged} has changed')
        file.seek(0)
        with harmless_globals():
            return unwrap(torch.load(file, map_location='cpu', weights_only=True))
    except CheckpointError:
        raise
    except Exception as error:
        reason = str(error)
        named = re.search(r'GLOBAL (\S+) (?:was not|whose module)|(\S+) must not be called', reason)
        if isinstance(error, pickle.UnpicklingError) and named:
            code = named[1] or named[2]
            raise CheckpointError(
                f'{name} is refused: to read it the code of {code} would have to run'
            ) from error
        # torch raises RuntimeError, OSError, EOFError, KeyError, ... on damaged files.
        raise CheckpointError(f'{name} is incomplete or no checkpoint{_because(error)}') from error


def damaged_part(file: BinaryIO) -> str:
    """Name of the first part whose content is not what was written; torch does not look."""
    file.seek(0)
    if not zipfile.is_zipfile(file):
        return ''
    with zipfile.ZipFile(file) as archive:
        for part in archive.infolist():
            # 0: written without check sums.
            if part.CRC:
                try:
                    with archive.open(part) as content:
                        while content.read(2**20):
                            pass
                except zipfile.BadZipFile:
                    return part.filename
    return ''


def _because(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    reason = f': {lines[0].split(". ")[0][:120]}' if lines else ''
    return f' ({type(error).__name__}{reason})'


def _read_safetensors(file: BinaryIO, name: str) -> Dict[str, Any]:
    data = file.read()
    try:
        weights = safetensors.torch.load(data)
        # 8 bytes say how long the header is, which holds the meta information.
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], 'little')])
    except (SafetensorError, ValueError) as error:
        raise CheckpointError(f'{name} is incomplete or no checkpoint{_because(error)}') from error
    meta = header.get('__metadata__', {})
    ours = 'meta' in meta  # where what looks like a check sum is one, though its name be damaged
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
