"""Kernel check of all operators at once, for ``mmlinattn doctor --gpu``."""

from itertools import product
from typing import Callable, Dict, Iterator, Tuple

import torch

from . import (
    Rotary,
    adaptive_features,
    linear_attention,
    local_gate,
    mala_attention,
    nystrom_attention,
    rala_attention,
    random_walk_attention,
    ripple_attention,
)
from .common import kernel_check
from .common.dispatch import use_backend
from .common.kernel_verdicts import Verdict

SIDE, HEADS, DIM = 64, 2, 64
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def check_all(device: torch.device) -> Dict[str, Verdict]:
    """Check the kernels of every operator anew, forward and in training.

    Returns:
        verdicts by operator, dtype and options; they are kept for later processes.
    """
    found: Dict[str, Verdict] = {}
    with kernel_check.checked_anew(), use_backend('auto'):
        for dtype, training in product(DTYPES, (False, True)):
            for call in _calls(device, dtype, training):
                call()
                found.update(kernel_check.verdicts())
    return found


def _calls(device: torch.device, dtype: torch.dtype, training: bool) -> Iterator[Callable]:
    """Yield a call of each operator on a map of 64 x 64 tokens."""

    def rand(*shape: int) -> torch.Tensor:
        return torch.rand(shape, device=device, dtype=dtype).requires_grad_(training)

    tokens: Tuple[int, ...] = (1, HEADS, SIDE * SIDE, DIM)
    q, k, v = rand(*tokens), rand(*tokens), rand(*tokens)
    rotary, hw_shape = Rotary((SIDE, SIDE), DIM), (SIDE, SIDE)
    anchors = rand(HEADS, 49, DIM)
    landmarks = rand(1, HEADS, 49, DIM)
    rings = rand(*tokens[:3], 4)
    small = rand(1, HEADS, SIDE * SIDE, 32)
    learnt = rand(32, 32), rand(32, 64), rand(32)
    maps, weight = rand(1, SIDE * SIDE, DIM), rand(DIM, 1, 5, 5)
    yield lambda: linear_attention(q, k, v, feature_map='elu+1')
    yield lambda: rala_attention(q, k, v, rotary=rotary)
    yield lambda: mala_attention(q, k, v, rotary=rotary)
    yield lambda: random_walk_attention(q, k, v, anchors, anchors)
    yield lambda: nystrom_attention(q, k, v, landmarks, landmarks)
    yield lambda: ripple_attention(q, k, v, rings, hw_shape=hw_shape, stick='offset')
    yield lambda: adaptive_features(small, small, *learnt)
    yield lambda: local_gate(maps, maps, maps, weight, None, hw_shape=hw_shape)
