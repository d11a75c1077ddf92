"""Feature maps ``phi`` without parameters, for queries and keys of linear attention."""

from typing import Callable, Dict

import torch.nn.functional as F
from torch import Tensor


def elu1(x: Tensor) -> Tensor:
    """``elu(x) + 1``: positive, linear above 0, ``exp`` below."""
    return F.elu(x) + 1


def softmax_channels(x: Tensor) -> Tensor:
    """Softmax over the channels of each token."""
    return x.softmax(-1)


FEATURE_MAPS: Dict[str, Callable[[Tensor], Tensor]] = {
    'elu+1': elu1,
    'relu': F.relu,
    'softmax': softmax_channels,
}


def feature_map(name: str) -> Callable[[Tensor], Tensor]:
    """Looks a feature map up; raises ValueError naming the known ones.

    Example:
        >>> import torch
        >>> feature_map('elu+1')(torch.zeros(2))
        tensor([1., 1.])
    """
    if name not in FEATURE_MAPS:
        raise ValueError(f'feature_map must be one of {tuple(FEATURE_MAPS)}, got {name!r}')
    return FEATURE_MAPS[name]
