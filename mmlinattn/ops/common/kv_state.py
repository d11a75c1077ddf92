"""Normalised sums over the keys, for linear attention, RALA, MALA and ripple attention.

With weights w_j that sum to 1 over the real tokens, ``S = sum_j w_j rot(phi(k_j)) v_j^T`` and
``z = sum_j w_j phi(k_j)``. Linear attention has equal weights; RALA's are a softmax over the
tokens, computed online. MALA needs ``sum_j w_j v_j`` as well. Each program processes a chunk of
tokens of one head and writes its sums once; :mod:`.reduction` adds the chunks.
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
    packed_image,
    real_tokens,
    rotate,
    strides,
)


@triton.jit
def _kv_state_kernel(
    K, V, MASK, IMAGES, ANGLES, MEAN, SUMS, TOP, MASS,
    skb, skh, skn, skd, svb, svh, svn, svd, H, N, width, CHUNK, scale,
    D: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, FEATURE: tl.constexpr,
    HAS_MASK: tl.constexpr, SCORED: tl.constexpr, ROTARY: tl.constexpr, ROWS: tl.constexpr,
    PACKED: tl.constexpr,
):  # fmt: skip
    """Sum one chunk: S, z and (ROWS = 2) the values in (BD + ROWS, BD), largest score, mass."""
    head, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    b, h = head // H, head % H
    if PACKED:
        b, first, N, width, ANGLES = packed_image(IMAGES, b, ANGLES)
        K += first * skn
        V += first * svn
    kind = K.dtype.element_ty
    cols, pairs = tl.arange(0, BD), tl.arange(0, BD // 2)
    state, z = tl.zeros((BD, BD), tl.float32), tl.zeros((BD,), tl.float32)
    top, mass = tl.full((), LOWEST, tl.float32), tl.full((), 0.0, tl.float32)
    if ROWS == 2:
        values = tl.zeros((BD,), tl.float32)
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
        if ROWS == 2:
            values += tl.sum(tl.where(real[:, None], v, 0.0), 0)
        if ROTARY:
            cos, sin = load_angles(ANGLES, rows, pairs, N, width, ROTARY)
            # The mask has no effect, but Triton 3.6 cannot compile the bare transpose for sm_100.
            k = tl.where(real[:, None], rotate(k, cos, sin, BN, BD), 0.0)
        state = add_product(state, tl.trans(k), v, kind)
    at = head * tl.num_programs(1) + split
    SUMS += at * (BD + ROWS) * BD
    tl.store(SUMS + cols[:, None] * BD + cols[None, :], state)
    tl.store(SUMS + BD * BD + cols, z)
    if ROWS == 2:
        tl.store(SUMS + (BD + 1) * BD + cols, values)
    tl.store(MASS + at, mass)
    if SCORED:
        tl.store(TOP + at, top)


class KernelKVState(NamedTuple):
    """State of the output kernel and both backward passes: float32, one per head.

    Attributes:
        sums: S, z and for MALA the mean of v, (B, heads, BD + rows, BD); BD is the padded head
            dim, rows is 1 or 2.
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
    """Sizes and options that the kernels of linear attention, RALA and MALA share.

    Args:
        kind: ``''`` for linear attention, ``'rala'`` or ``'mala'``.
        images: :meth:`.packed.PackedShapes.table` of packed images, or None.
        longest: the most tokens of a packed image.
    """

    def __init__(
        self,
        q: Tensor,
        mask: Optional[Tensor],
        feature_id: int,
        kind: str,
        axes: Optional[Tensor] = None,
        width: int = 0,
        images: Optional[Tensor] = None,
        longest: int = 0,
    ) -> None:
        super().__init__(q, mask)
        if images is not None:
            self.batch, self.num_tokens, self.root = images.shape[0], longest, longest**0.5
        self.images, self.packed = q if images is None else images, dict(PACKED=images is not None)
        self.axes = q if axes is None else axes.contiguous()
        self.scale = self.dim**-0.5
        self.kind, self.scored = kind, kind == 'rala'
        self.rows = 2 if kind == 'mala' else 1
        self.sizes = (self.heads, self.num_tokens, width)
        self.blocks: Dict[str, int] = dict(D=self.dim, BD=self.bd, FEATURE=feature_id)
        self.state_rows = dict(ROWS=self.rows)
        self.rotary = dict(ROTARY=0 if axes is None else self.dim // 4)

    def name(self, kernel: str) -> str:
        """Return the entry of the launch table for a kernel."""
        return f'{self.kind}_{kernel}' if self.kind else kernel


def make_kv_state(
    k: Tensor, v: Tensor, mean: Optional[Tuple[Tensor, Tensor]], launch: KeyLaunch
) -> KernelKVState:
    """Compute the normalised sums over all tokens.

    Args:
        mean: mean query and number of tokens, for RALA.
    """
    name, rows = launch.name('kv_state'), launch.bd + launch.rows
    sums = launch.parts(name, rows, launch.bd)
    mass, top = launch.parts(name, 1), launch.parts(name, 1) if launch.scored else None
    launch.run(
        name, _kv_state_kernel,
        k, v, launch.mask, launch.images, launch.axes, k if mean is None else mean[0],
        sums, mass if top is None else top, mass,
        *strides(k), *strides(v), *launch.sizes, SCORED=launch.scored, scale=launch.scale,
        **launch.blocks, **launch.has_mask, **launch.rotary, **launch.state_rows, **launch.packed,
    )  # fmt: skip
    # One row: all elements of a head share a mass.
    sums, total = mean_of_chunks(sums.flatten(3)[:, :, :, None], Masses(mass, top))
    mean, count = mean or (total.new_empty(0), total.new_empty(0))
    sums = sums.view(launch.batch, launch.heads, rows, launch.bd)
    return KernelKVState(sums, total.squeeze(2), mean, count)
