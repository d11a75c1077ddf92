"""Conversion of checkpoint meta information to plain types."""

from argparse import Namespace
from collections.abc import Mapping
from typing import Any, Dict

import numpy as np
from torch import Tensor


def plain_meta(meta: Mapping) -> Dict[str, Any]:
    """Return the entries of plain types (None, bool, int, float, str and containers of these).

    Numpy numbers, numpy arrays, tensors and namespaces are converted to plain types; other
    entries are omitted. ``CLASSES`` and ``PALETTE`` become ``dataset_meta``.

    Example:
        >>> plain_meta(dict(epoch=np.int64(3), CLASSES=('cat', 'dog'), model=object()))
        {'epoch': 3, 'dataset_meta': {'classes': ('cat', 'dog')}}
    """
    meta = _plain(meta)
    old = {name.lower(): meta.pop(name) for name in ('CLASSES', 'PALETTE') if name in meta}
    old = {name: value for name, value in old.items() if value is not None}
    if old:
        meta['dataset_meta'] = dict(old, **(meta.get('dataset_meta') or {}))
    return meta


_NOT_PLAIN = object()


def _plain(value: Any) -> Any:
    if isinstance(value, (np.generic, np.ndarray, Tensor)):
        value = value.tolist()
    if isinstance(value, Namespace):
        value = vars(value)
    if isinstance(value, Mapping):
        items = ((key, _plain(item)) for key, item in value.items())
        return {
            key if isinstance(key, (bool, int, float, str)) else str(key): item
            for key, item in items
            if item is not _NOT_PLAIN
        }
    if isinstance(value, (list, tuple, set, frozenset)):
        items = [item for item in map(_plain, value) if item is not _NOT_PLAIN]
        return tuple(items) if isinstance(value, tuple) else items
    return value if value is None or type(value) in (bool, int, float, str) else _NOT_PLAIN
