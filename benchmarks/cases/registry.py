"""Registry of benchmark cases, each with the implementations to compare.

A case is a function from a :class:`Setup` to its baselines by name, registered with :func:`case`.
The others are compared with the first one.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, Callable, Dict, Optional, Sequence, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..baselines import textbook

OURS = 'mmlinattn'


@dataclass(frozen=True)
class Setup:
    """Sizes, dtype and device of one measurement.

    Args:
        hw_shape: the map of an operator or a layer, the image of a backbone.
        training: True if gradients are computed.
        layout: memory layout of q, k and v: ``'tokens'``, (B, N, heads, d) in memory each, as a
            projection stores it; ``'contiguous'``, (B, heads, N, d) in memory; ``'triton'``, views
            of one (B, N, 3, heads, d).
    """

    hw_shape: Tuple[int, int]
    batch: int
    heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device
    training: bool = False
    layout: str = 'tokens'

    @property
    def num_tokens(self) -> int:
        return self.hw_shape[0] * self.hw_shape[1]

    @property
    def embed_dims(self) -> int:
        return self.heads * self.head_dim

    def randn(self, *shape: int) -> Tensor:
        return torch.randn(*shape, dtype=self.dtype, device=self.device)

    def qkv(self) -> Tuple[Tensor, Tensor, Tensor]:
        """Return random q, k, v, (B, heads, N, d) each, in the memory order of ``layout``."""
        shape = self.batch, self.num_tokens, self.heads, self.head_dim
        if self.layout == 'triton':
            parts = self.randn(*shape[:2], 3, *shape[2:]).unbind(2)
        else:
            parts = [self.randn(*shape) for _ in range(3)]
        q, k, v = (x.transpose(1, 2) for x in parts)
        if self.layout == 'contiguous':
            q, k, v = (x.contiguous() for x in (q, k, v))
        return self.leaf(q), self.leaf(k), self.leaf(v)

    def features(self) -> Tuple[Tensor, Tensor, Tensor]:
        """Return random q, k, v as :meth:`qkv` does, with positive q and k."""
        q, k, v = self.qkv()
        for x in (q, k):
            x.detach().copy_(F.elu(x.detach()) + 1)  # in place, to keep the memory order
        return q, k, v

    def tokens(self, count: Optional[int] = None) -> Tensor:
        """Return random (B, N, C), by default with the tokens of the map."""
        return self.leaf(self.randn(self.batch, count or self.num_tokens, self.embed_dims))

    def image(self) -> Tensor:
        """Return a random image (B, 3, H, W)."""
        return self.leaf(self.randn(self.batch, 3, *self.hw_shape))

    def rotary_tables(self) -> textbook.Tables:
        return textbook.rotary_tables(self.hw_shape, self.head_dim, self.dtype, self.device)

    def leaf(self, x: Tensor) -> Tensor:
        return x.detach().requires_grad_(self.training)

    def module(self, module: nn.Module) -> nn.Module:
        from mmlinattn.models.layers import optimize_for_cpu

        return optimize_for_cpu(module.to(self.device, self.dtype).train(self.training))


@dataclass(frozen=True)
class Baseline:
    """One implementation of a case.

    Args:
        call: the forward pass.
        inputs: its inputs; a training step computes gradients for them and for ``parameters``.
        same: True if it computes the result of the first baseline; checked before any timing.
        quadratic: True if time grows with the square of the tokens; skipped if it takes too long.
    """

    call: Callable[[], object]
    inputs: Sequence[Tensor]
    parameters: Sequence[Tensor] = ()
    same: bool = True
    quadratic: bool = False

    @classmethod
    def of_module(cls, module: nn.Module, *args: Any, same: bool = False, **options) -> 'Baseline':
        """Return the baseline of ``module(*args)``; the first argument is the input."""
        return cls(partial(module, *args), args[:1], tuple(module.parameters()), same, **options)


Baselines = Dict[str, Baseline]


@dataclass(frozen=True)
class Case:
    """A registered case.

    Args:
        kind: ``'operator'``, ``'layer'`` or ``'backbone'``, by the module that registers it.
        about: the comparison and the expected result, for the report.
        build: builds the baselines for a setup.
    """

    name: str
    kind: str
    about: str
    build: Callable[[Setup], Baselines]


CASES: Dict[str, Case] = {}


def map_shape(num_tokens: int) -> Tuple[int, int]:
    """Return the map (H, W) with ``num_tokens`` tokens nearest to a square, with H <= W.

    Example:
        >>> map_shape(4096), map_shape(2048), map_shape(7)
        ((64, 64), (32, 64), (1, 7))
    """
    height = next(h for h in range(int(num_tokens**0.5), 0, -1) if num_tokens % h == 0)
    return height, num_tokens // height


def case(name: str, about: str) -> Callable:
    """Register a :class:`Case`."""

    def register(build: Callable[[Setup], Baselines]) -> Callable[[Setup], Baselines]:
        kind = build.__module__.rpartition('.')[2].removesuffix('s')
        CASES[name] = Case(name, kind, about, build)
        return build

    return register
