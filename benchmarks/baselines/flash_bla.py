"""Baseline flash-bidirectional-linear-attention (flash_bla, formerly fbi_la), if it is installed.

Only its public functions are called. Its kernels autotune over 144 configurations for each number
of tokens, which takes minutes. Here they are limited to four.
"""

import functools
from importlib import import_module, util
from types import ModuleType

import torch.nn.functional as F
from torch import Tensor

from .textbook import Tables, rotate

NAMES = ('flash_bla', 'fbi_la')
CONFIGURATIONS = dict(BL=(128,), BK=(64,), BV=(64,), num_warps=(4, 8), num_stages=(2, 3))


def installed() -> bool:
    """Return True if the package is installed."""
    return any(map(util.find_spec, NAMES))


@functools.cache
def _module(name: str) -> ModuleType:
    package = next(filter(util.find_spec, NAMES))
    folder = f'{package}.ops.linear_attn'
    if name == 'fused' and util.find_spec(f'{folder}.fused') is None:
        name = 'triton'  # its name before August 2026
    module = import_module(f'{folder}.{name}')
    for kernel in vars(module).values():
        if hasattr(kernel, 'configs'):
            few = [config for config in kernel.configs if _kept(config)]
            kernel.configs = few or kernel.configs[:8]
    return module


def _kept(config) -> bool:
    options = dict(config.kwargs, num_warps=config.num_warps, num_stages=config.num_stages)
    return all(options.get(name) in (None, *kept) for name, kept in CONFIGURATIONS.items())


def linear(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute linear attention, see :func:`benchmarks.baselines.textbook.linear`."""
    return _module('fused').linear_attention(q, k, v)


def rala(q: Tensor, k: Tensor, v: Tensor, rotary: Tables) -> Tensor:
    """Compute RALA as the package's layer does, see :func:`benchmarks.baselines.textbook.rala`.

    Features, weights and rotation are computed by torch, the rest by its kernels.
    """
    num_tokens, dim = q.shape[-2:]
    q, k = F.elu(q) + 1, F.elu(k) + 1
    scores = dim**-0.5 * q.mean(2, keepdim=True) @ k.transpose(-2, -1)
    k = k * (num_tokens * scores.softmax(-1)).transpose(-2, -1)
    decoupled = _module('decoupled').decoupled_la
    return decoupled(q, k, rotate(q, rotary), rotate(k, rotary), v, scale=1 / num_tokens)
