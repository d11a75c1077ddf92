"""Normalised sums over the keys, which linear attention, RALA and ripple attention read.

With weights w_j that sum to 1 over the real tokens, ``S = sum_j w_j rot(phi(k_j)) v_j^T`` and
``z = sum_j w_j phi(k_j)``. Linear attention has equal weights; RALA's are a softmax over the
tokens, taken online. The kernel walks over a chunk of tokens of one head; what it sums over tokens
it writes once a chunk, and torch adds the few chunks.
"""

from typing import NamedTuple, Optional

import torch
import triton
import triton.language as tl
from torch import Tensor

from .numerics import no_autocast
from .triton import (
    LOWEST,
    OPTIONS,
    Launch,
    feature,
    load_angles,
    load_rows,
    padded,
    product,
    real_tokens,
    rotate,
    strides,
)


@triton.jit
def _state_kernel(
    K, V, MASK, ANGLES, MEAN, S, Z, TOP, MASS,
    skb, skh, skn, skd, svb, svh, svn, svd, H, N, D, width, CHUNK, scale,
    BN: tl.constexpr, BD: tl.constexpr, FEATURE: tl.constexpr, HAS_MASK: tl.constexpr,
    SCORED: tl.constexpr, ROTARY: tl.constexpr,
):  # fmt: skip
    """Of one chunk: the sums S (BD, BD) and z (BD,), the largest score and the mass."""
    head, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    b, h = head // H, head % H
    cols, pairs = tl.arange(0, BD), tl.arange(0, BD // 2)
    state, z = tl.zeros((BD, BD), tl.float32), tl.zeros((BD,), tl.float32)
    top, mass = tl.full((), LOWEST, tl.float32), tl.full((), 0.0, tl.float32)
    if SCORED:
        mean = tl.load(MEAN + head * BD + cols) * scale
    for start in range(split * CHUNK, tl.minimum((split + 1) * CHUNK, N), BN):
        rows = start + tl.arange(0, BN)
        real = real_tokens(MASK + b * N, rows, N, HAS_MASK)
        k = feature(load_rows(K + b * skb + h * skh, rows, cols, skn, skd, N, D), FEATURE)
        # phi(0) may be 1: what is outside must not count.
        k = tl.where(real[:, None] & (cols[None, :] < D), k, 0.0)
        v = load_rows(V + b * svb + h * svh, rows, cols, svn, svd, N, D)
        weight = tl.where(real, 1.0, 0.0)
        if SCORED:
            scores = tl.where(real, tl.sum(k * mean[None, :], 1), LOWEST)
            new_top = tl.maximum(top, tl.max(scores, 0))
            weight *= tl.exp(scores - new_top)
            fade = tl.exp(top - new_top)
            state, z, mass, top = state * fade, z * fade, mass * fade, new_top
        mass += tl.sum(weight, 0)
        k = k * weight[:, None]
        z += tl.sum(k, 0)
        if ROTARY:
            cos, sin = load_angles(ANGLES, rows, pairs, N, D, width)
            # Does nothing, but Triton 3.6 does not compile the bare transpose for sm_100.
            k = tl.where(real[:, None], rotate(k, cos, sin, BN, BD), 0.0)
        kind = K.dtype.element_ty
        state += product(tl.trans(k), v, kind)
    at = head * tl.num_programs(1) + split
    tl.store(S + at * BD * BD + cols[:, None] * BD + cols[None, :], state)
    tl.store(Z + at * BD + cols, z)
    tl.store(TOP + at, top)
    tl.store(MASS + at, mass)


class State(NamedTuple):
    """What the readout and both backward passes need: float32, one of each a head.

    Attributes:
        s: (B, heads, BD, BD); BD is the padded head dim.
        z: (B, heads, BD).
        eps: (B, heads), on the scale of the normalised sums.
        lse: (B, heads), log of the sum of the weights before they were normalised.
        mean: (B, heads, BD), mean query, or empty without scores.
    """

    s: Tensor
    z: Tensor
    eps: Tensor
    lse: Tensor
    mean: Tensor


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
        super().__init__(q, mask, widest=padded(q.shape[-1]))
        self.axes = q if axes is None else axes.contiguous()
        self.scale = self.dim**-0.5
        self.scored = scored
        self.sizes = (self.heads, self.num_tokens, self.dim, width, self.chunk)
        self.blocks = dict(BN=self.bn, BD=self.bd, FEATURE=feature_id, **OPTIONS)
        self.rotary = dict(ROTARY=axes is not None)

    def count(self) -> Tensor:
        """Real tokens of each image, (B, 1), at least 1."""
        if not self.has_mask['HAS_MASK']:
            return torch.full((self.batch, 1), float(self.num_tokens), device=self.device)
        padding = self.mask.sum(1, keepdim=True, dtype=torch.float32)
        return (self.num_tokens - padding).clamp(min=1)


def make_state(
    k: Tensor, v: Tensor, mean: Optional[Tensor], eps: float, launch: KeyLaunch
) -> State:
    """The normalised sums over all tokens."""
    bd = launch.bd
    s, z, top, mass = (launch.per_chunk(*shape) for shape in ((bd, bd), (bd,), (), ()))
    _state_kernel[launch.grid](
        k, v, launch.mask, launch.axes, k if mean is None else mean, s, z, top, mass,
        *strides(k), *strides(v), *launch.sizes, launch.scale,
        SCORED=launch.scored, **launch.blocks, **launch.has_mask, **launch.rotary,
    )  # fmt: skip
    if launch.scored:
        best = top.amax(2, keepdim=True)
        fade = (top - best).exp()
        total = (mass * fade).sum(2)
        lse = best.squeeze(2) + total.clamp(min=1e-30).log()
    else:
        fade, total = torch.ones_like(mass), mass.sum(2)
        lse = total.clamp(min=1).log()
    share = fade / total.where(total > 0, 1)[..., None]  # [B, H, splits]
    share = share[:, :, None]
    with no_autocast(s):  # products: scaled sums of all chunks are not written
        s = (share @ s.flatten(3)).view(*s.shape[:2], bd, bd)
        z = (share @ z).squeeze(2)
    # Linear attention adds eps to a sum, RALA to a mean.
    eps = torch.full_like(total, eps) / (1 if launch.scored else total.clamp(min=1))
    return State(s, z, eps, lse, z.new_empty(0) if mean is None else mean)
