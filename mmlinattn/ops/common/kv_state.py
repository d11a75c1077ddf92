"""Normalised sums over the keys, for linear attention, RALA and ripple attention.

With weights w_j that sum to 1 over the real tokens, ``S = sum_j w_j rot(phi(k_j)) v_j^T`` and
``z = sum_j w_j phi(k_j)``. Linear attention has equal weights; RALA's are a softmax over the
tokens, computed online. Each program processes a chunk of tokens of one head and writes its sums
once; :mod:`.reduction` adds the chunks.
"""

from typing import Dict, NamedTuple, Optional, Tuple

import triton
import triton.language as tl
from torch import Tensor

from .reduction import Masses, mean_of_chunks
from .triton_helpers import (
    LOWEST,
    Launch,
    add_product,
    feature,
    load_angles,
    load_rows,
    real_tokens,
    rotate,
    strides,
)


@triton.jit
def _kv_state_kernel(
    K, V, MASK, ANGLES, MEAN, SUMS, TOP, MASS,
    skb, skh, skn, skd, svb, svh, svn, svd, H, N, width, CHUNK, scale,
    D: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, FEATURE: tl.constexpr,
    HAS_MASK: tl.constexpr, SCORED: tl.constexpr, ROTARY: tl.constexpr,
):  # fmt: skip
    """Sum one chunk: S and z in (BD + 1, BD), the largest score and the mass."""
    head, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    b, h = head // H, head % H
    kind = K.dtype.element_ty
    cols, pairs = tl.arange(0, BD), tl.arange(0, BD // 2)
    state, z = tl.zeros((BD, BD), tl.float32), tl.zeros((BD,), tl.float32)
    top, mass = tl.full((), LOWEST, tl.float32), tl.full((), 0.0, tl.float32)
    if SCORED:
        mean = tl.load(MEAN + head * BD + cols) * scale
    for start in range(split * CHUNK, tl.minimum((split + 1) * CHUNK, N), BN):
        rows = start + tl.arange(0, BN)
        real = real_tokens(MASK + b * N, rows, N, HAS_MASK)
        k = feature(load_rows(K + b * skb + h * skh, rows, cols, skn, skd, N, D), FEATURE)
        # phi(0) may be 1: exclude rows and columns outside.
        k = tl.where(real[:, None] & (cols[None, :] < D), k, 0.0)
        v = load_rows(V + b * svb + h * svh, rows, cols, svn, svd, N, D)
        weight = tl.where(real, 1.0, 0.0)
        if SCORED:
            scores = tl.where(real, tl.sum(k * mean[None, :], 1), LOWEST)
            new_top = tl.maximum(top, tl.max(scores, 0))
            weight *= tl.exp(scores - new_top)
            fade = tl.exp(top - new_top)
            state, z, mass, top = state * fade, z * fade, mass * fade, new_top
            k = k * weight[:, None]
        mass += tl.sum(weight, 0)
        z += tl.sum(k, 0)
        if ROTARY:
            cos, sin = load_angles(ANGLES, rows, pairs, N, width, ROTARY)
            # The mask has no effect, but Triton 3.6 cannot compile the bare transpose for sm_100.
            k = tl.where(real[:, None], rotate(k, cos, sin, BN, BD), 0.0)
        state = add_product(state, tl.trans(k), v, kind)
    at = head * tl.num_programs(1) + split
    SUMS += at * (BD + 1) * BD
    tl.store(SUMS + cols[:, None] * BD + cols[None, :], state)
    tl.store(SUMS + BD * BD + cols, z)
    tl.store(MASS + at, mass)
    if SCORED:
        tl.store(TOP + at, top)


class KVState(NamedTuple):
    """State of the output kernel and both backward passes: float32, one per head.

    Attributes:
        sums: S and z below it, (B, heads, BD + 1, BD); BD is the padded head dim.
        total: (B, heads): the number of real tokens, at least 1; with scores the log of the sum
            of their exponentials.
        mean: mean query (B, heads, BD), or empty without scores.
        tokens: real ones (B, heads), at least 1, or empty without scores.
    """

    sums: Tensor
    total: Tensor
    mean: Tensor
    tokens: Tensor


class KeyLaunch(Launch):
    """Sizes and options that the kernels of linear attention and RALA share."""

    def __init__(
        self,
        q: Tensor,
        mask: Optional[Tensor],
        feature_id: int,
        scored: bool,
        axes: Optional[Tensor] = None,
        width: int = 0,
    ) -> None:
        super().__init__(q, mask)
        self.axes = q if axes is None else axes.contiguous()
        self.scale = self.dim**-0.5
        self.scored = scored
        self.sizes = (self.heads, self.num_tokens, width)
        self.blocks: Dict[str, int] = dict(D=self.dim, BD=self.bd, FEATURE=feature_id)
        self.rotary = dict(ROTARY=0 if axes is None else self.dim // 4)


def make_kv_state(
    k: Tensor, v: Tensor, mean: Optional[Tuple[Tensor, Tensor]], launch: KeyLaunch
) -> KVState:
    """Compute the normalised sums over all tokens.

    Args:
        mean: mean query and number of tokens, for RALA.
    """
    name = 'rala_kv_state' if launch.scored else 'kv_state'
    sums = launch.parts(name, launch.bd + 1, launch.bd)
    mass, top = launch.parts(name, 1), launch.parts(name, 1) if launch.scored else None
    launch.run(
        name, _kv_state_kernel,
        k, v, launch.mask, launch.axes, k if mean is None else mean[0],
        sums, mass if top is None else top, mass,
        *strides(k), *strides(v), *launch.sizes, SCORED=launch.scored, scale=launch.scale,
        **launch.blocks, **launch.has_mask, **launch.rotary,
    )  # fmt: skip
    # One row: all elements of a head share a mass.
    sums, total = mean_of_chunks(sums.flatten(3)[:, :, :, None], Masses(mass, top))
    mean, count = mean or (total.new_empty(0), total.new_empty(0))
    return KVState(sums.view(*k.shape[:2], launch.bd + 1, launch.bd), total.squeeze(2), mean, count)
