"""Kernelised linear attention and RALA: one family of kernels.

With weights w_j that sum to 1 over the real tokens, ``S = sum_j w_j rot(phi(k_j)) v_j^T`` and
``z = sum_j w_j phi(k_j)``, the output is ``rot(phi(q_i)) S / (phi(q_i) . z + eps)``. Linear
attention has equal weights; RALA's are a softmax over the tokens, taken online. Normalised sums
keep float16 in range; gradients of sums are stored over the root of the number of tokens, which
keeps them there whatever their signs. Every kernel walks over a chunk of tokens of one head; what
it sums over tokens it writes once a chunk, and torch adds the few chunks.
"""

from typing import NamedTuple, Optional, Tuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..numerics import no_autocast
from .common import (
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
    slope,
    store_rows,
    strides,
    token_major,
)

# Of the largest kernel, see :func:`.common.refuses`.
SHARED_KIB = dict(half=(48, 96), float=(64, 112))


@triton.jit
def _mean_kernel(
    Q, MASK, OUT, sqb, sqh, sqn, sqd, H, N, D, CHUNK,
    BN: tl.constexpr, BD: tl.constexpr, FEATURE: tl.constexpr, HAS_MASK: tl.constexpr,
):  # fmt: skip
    """Sum over a chunk of phi(q), (BD,)."""
    head, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    b, h = head // H, head % H
    cols = tl.arange(0, BD)
    total = tl.zeros((BD,), tl.float32)
    for start in range(split * CHUNK, tl.minimum((split + 1) * CHUNK, N), BN):
        rows = start + tl.arange(0, BN)
        real = real_tokens(MASK + b * N, rows, N, HAS_MASK)
        x = load_rows(Q + b * sqb + h * sqh, rows, cols, sqn, sqd, N, D)
        total += tl.sum(tl.where(real[:, None], feature(x, FEATURE), 0.0), 0)
    tl.store(OUT + (head * tl.num_programs(1) + split) * BD + cols, total)


@triton.jit
def _state_kernel(
    K, V, MASK, COS, SIN, MEAN, S, Z, TOP, MASS,
    skb, skh, skn, skd, svb, svh, svn, svd, H, N, D, CHUNK, scale,
    BN: tl.constexpr, BD: tl.constexpr, FEATURE: tl.constexpr, HAS_MASK: tl.constexpr,
    WEIGHTED: tl.constexpr, ROTARY: tl.constexpr,
):  # fmt: skip
    """Of one chunk: the sums S (BD, BD) and z (BD,), the largest score and the mass."""
    head, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    b, h = head // H, head % H
    cols, pairs = tl.arange(0, BD), tl.arange(0, BD // 2)
    state, z = tl.zeros((BD, BD), tl.float32), tl.zeros((BD,), tl.float32)
    top, mass = tl.full((), LOWEST, tl.float32), tl.full((), 0.0, tl.float32)
    if WEIGHTED:
        mean = tl.load(MEAN + head * BD + cols) * scale
    for start in range(split * CHUNK, tl.minimum((split + 1) * CHUNK, N), BN):
        rows = start + tl.arange(0, BN)
        real = real_tokens(MASK + b * N, rows, N, HAS_MASK)
        k = feature(load_rows(K + b * skb + h * skh, rows, cols, skn, skd, N, D), FEATURE)
        # phi(0) may be 1: what is outside must not count.
        k = tl.where(real[:, None] & (cols[None, :] < D), k, 0.0)
        v = load_rows(V + b * svb + h * svh, rows, cols, svn, svd, N, D)
        weight = tl.where(real, 1.0, 0.0)
        if WEIGHTED:
            scores = tl.where(real, tl.sum(k * mean[None, :], 1), LOWEST)
            new_top = tl.maximum(top, tl.max(scores, 0))
            weight *= tl.exp(scores - new_top)
            fade = tl.exp(top - new_top)
            state, z, mass, top = state * fade, z * fade, mass * fade, new_top
        mass += tl.sum(weight, 0)
        k = k * weight[:, None]
        z += tl.sum(k, 0)
        if ROTARY:
            cos = load_angles(COS, rows, pairs, N, D)
            sin = load_angles(SIN, rows, pairs, N, D)
            # Does nothing, but Triton 3.6 does not compile the bare transpose for sm_100.
            k = tl.where(real[:, None], rotate(k, cos, sin, BN, BD), 0.0)
        kind = K.dtype.element_ty
        state += product(tl.trans(k), v, kind)
    at = head * tl.num_programs(1) + split
    tl.store(S + at * BD * BD + cols[:, None] * BD + cols[None, :], state)
    tl.store(Z + at * BD + cols, z)
    tl.store(TOP + at, top)
    tl.store(MASS + at, mass)


@triton.jit
def _readout_kernel(
    Q, COS, SIN, S, Z, EPS, OUT,
    sqb, sqh, sqn, sqd, sob, soh, son, sod, H, N, D, CHUNK,
    BN: tl.constexpr, BD: tl.constexpr, FEATURE: tl.constexpr, ROTARY: tl.constexpr,
):  # fmt: skip
    head, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    b, h = head // H, head % H
    cols, pairs = tl.arange(0, BD), tl.arange(0, BD // 2)
    kind = Q.dtype.element_ty
    state = tl.load(S + head * BD * BD + cols[:, None] * BD + cols[None, :])
    z = tl.load(Z + head * BD + cols)
    eps = tl.load(EPS + head)
    for start in range(split * CHUNK, tl.minimum((split + 1) * CHUNK, N), BN):
        rows = start + tl.arange(0, BN)
        q = feature(load_rows(Q + b * sqb + h * sqh, rows, cols, sqn, sqd, N, D), FEATURE)
        q = tl.where(cols[None, :] < D, q, 0.0)
        norm = tl.sum(q * z[None, :], 1) + eps
        if ROTARY:
            cos = load_angles(COS, rows, pairs, N, D)
            sin = load_angles(SIN, rows, pairs, N, D)
            q = rotate(q, cos, sin, BN, BD)
        out = product(q, state, kind) / norm[:, None]
        store_rows(OUT + b * sob + h * soh, out, rows, cols, son, sod, N, D)


@triton.jit
def _query_backward_kernel(
    Q, DOUT, MASK, COS, SIN, S, Z, EPS, DMEAN, DQ, DS, DZ,
    sqb, sqh, sqn, sqd, sgb, sgh, sgn, sgd, sxb, sxh, sxn, sxd, H, N, D, CHUNK, root,
    BN: tl.constexpr, BD: tl.constexpr, FEATURE: tl.constexpr, HAS_MASK: tl.constexpr,
    ROTARY: tl.constexpr, SUM: tl.constexpr, WRITE: tl.constexpr, HAS_MEAN: tl.constexpr,
):  # fmt: skip
    """SUM: gradients of S and z over a chunk. WRITE: gradient of the queries."""
    head, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    b, h = head // H, head % H
    cols, pairs = tl.arange(0, BD), tl.arange(0, BD // 2)
    kind = Q.dtype.element_ty
    state = tl.load(S + head * BD * BD + cols[:, None] * BD + cols[None, :])
    z = tl.load(Z + head * BD + cols)
    eps = tl.load(EPS + head)
    shared = tl.zeros((BD,), tl.float32)
    if not ROTARY:
        # Gradients of queries are of how values differ: what all share would cost most digits.
        shared += tl.sum(state * z[:, None], 0) / tl.maximum(tl.sum(z * z), 1e-30)
        state -= z[:, None] * shared[None, :]
    d_state, d_z = tl.zeros((BD, BD), tl.float32), tl.zeros((BD,), tl.float32)
    if HAS_MEAN:
        d_mean = tl.load(DMEAN + head * BD + cols)
    for start in range(split * CHUNK, tl.minimum((split + 1) * CHUNK, N), BN):
        rows = start + tl.arange(0, BN)
        raw = load_rows(Q + b * sqb + h * sqh, rows, cols, sqn, sqd, N, D)
        grad = load_rows(DOUT + b * sgb + h * sgh, rows, cols, sgn, sgd, N, D)
        q = tl.where((rows[:, None] < N) & (cols[None, :] < D), feature(raw, FEATURE), 0.0)
        positive = tl.sum(q * z[None, :], 1)
        norm = positive + eps
        turned = q
        if ROTARY:
            cos = load_angles(COS, rows, pairs, N, D)
            sin = load_angles(SIN, rows, pairs, N, D)
            turned = tl.where(rows[:, None] < N, rotate(q, cos, sin, BN, BD), 0.0)  # for sm_100
        out = product(turned, state, kind) + positive[:, None] * shared[None, :]
        # The norm may be eps: what a product rounds is divided only where it is as small.
        d_norm = -tl.sum(grad * out, 1) / norm
        if SUM:
            d_state += product(tl.trans(turned / norm[:, None]), grad, kind)
            d_z += tl.sum(q * (d_norm / norm)[:, None], 0)
        if WRITE:
            dq = product(grad, tl.trans(state), kind)
            if ROTARY:
                dq = rotate(dq, cos, -sin, BN, BD)
            dq += (d_norm + tl.sum(grad * shared[None, :], 1))[:, None] * z[None, :]
            dq = dq / norm[:, None]
            if HAS_MEAN:
                real = real_tokens(MASK + b * N, rows, N, HAS_MASK)
                dq += tl.where(real[:, None], d_mean[None, :], 0.0)
            dq *= slope(raw, FEATURE)
            store_rows(DQ + b * sxb + h * sxh, dq, rows, cols, sxn, sxd, N, D)
    if SUM:
        at = head * tl.num_programs(1) + split
        tl.store(DS + at * BD * BD + cols[:, None] * BD + cols[None, :], d_state / root)
        tl.store(DZ + at * BD + cols, d_z / root)


@triton.jit
def _key_backward_kernel(
    K, V, MASK, COS, SIN, MEAN, LSE, DELTA, DS, DZ, DK, DV, DMEAN,
    skb, skh, skn, skd, svb, svh, svn, svd, sxb, sxh, sxn, sxd, H, N, D, CHUNK, scale, root,
    BN: tl.constexpr, BD: tl.constexpr, FEATURE: tl.constexpr, HAS_MASK: tl.constexpr,
    WEIGHTED: tl.constexpr, ROTARY: tl.constexpr,
):  # fmt: skip
    """Gradients of keys and values; over a chunk, that of the mean query."""
    head, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    b, h = head // H, head % H
    cols, pairs = tl.arange(0, BD), tl.arange(0, BD // 2)
    kind = K.dtype.element_ty
    d_state = tl.load(DS + head * BD * BD + cols[:, None] * BD + cols[None, :])
    d_z = tl.load(DZ + head * BD + cols)
    lse = tl.load(LSE + head)
    if WEIGHTED:
        mean = tl.load(MEAN + head * BD + cols) * scale
        delta = tl.load(DELTA + head)
        d_mean = tl.zeros((BD,), tl.float32)
    for start in range(split * CHUNK, tl.minimum((split + 1) * CHUNK, N), BN):
        rows = start + tl.arange(0, BN)
        real = real_tokens(MASK + b * N, rows, N, HAS_MASK)
        raw = load_rows(K + b * skb + h * skh, rows, cols, skn, skd, N, D)
        v = load_rows(V + b * svb + h * svh, rows, cols, svn, svd, N, D)
        k = tl.where(real[:, None] & (cols[None, :] < D), feature(raw, FEATURE), 0.0)
        weight = tl.exp(tl.zeros((BN,), tl.float32) - lse)
        if WEIGHTED:
            weight = tl.exp(tl.minimum(tl.sum(k * mean[None, :], 1) - lse, 0.0))
        weight = tl.where(real, weight * root, 0.0)
        turned = k
        if ROTARY:
            cos = load_angles(COS, rows, pairs, N, D)
            sin = load_angles(SIN, rows, pairs, N, D)
            turned = rotate(k, cos, sin, BN, BD)
        dv = tl.where(real[:, None], product(turned, d_state, kind) * weight[:, None], 0.0)
        d_turned = product(v, tl.trans(d_state), kind)
        dk = d_turned * weight[:, None]
        if ROTARY:
            dk = rotate(dk, cos, -sin, BN, BD)
        dk += weight[:, None] * d_z[None, :]
        if WEIGHTED:
            d_weight = tl.sum(turned * d_turned, 1) + tl.sum(k * d_z[None, :], 1)
            d_score = weight * (d_weight - delta)
            dk += d_score[:, None] * mean[None, :]
            d_mean += tl.sum(tl.where(real[:, None], d_score[:, None] * k, 0.0), 0) * scale
        dk = tl.where(real[:, None], dk * slope(raw, FEATURE), 0.0)
        store_rows(DK + b * sxb + h * sxh, dk, rows, cols, sxn, sxd, N, D)
        store_rows(DV + b * sxb + h * sxh, dv, rows, cols, sxn, sxd, N, D)
    if WEIGHTED:
        tl.store(DMEAN + (head * tl.num_programs(1) + split) * BD + cols, d_mean)


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


class KernelisedLaunch(Launch):
    """Sizes and options that all kernels of one call share."""

    def __init__(
        self,
        q: Tensor,
        mask: Optional[Tensor],
        rotary: Optional[Tuple[Tensor, Tensor]],
        feature_id: int,
        weighted: bool,
    ) -> None:
        super().__init__(q, mask, widest=padded(q.shape[-1]))
        self.sin, self.cos = (q, q) if rotary is None else (t.contiguous() for t in rotary)
        self.scale = self.dim**-0.5
        self.weighted = weighted
        self.sizes = (self.heads, self.num_tokens, self.dim, self.chunk)
        self.blocks = dict(BN=self.bn, BD=self.bd, FEATURE=feature_id, **OPTIONS)
        self.rotary = dict(ROTARY=rotary is not None)

    def count(self) -> Tensor:
        """Real tokens of each image, (B, 1), at least 1."""
        if not self.has_mask['HAS_MASK']:
            return torch.full((self.batch, 1), float(self.num_tokens), device=self.device)
        padding = self.mask.sum(1, keepdim=True, dtype=torch.float32)
        return (self.num_tokens - padding).clamp(min=1)


def mean_query(q: Tensor, launch: KernelisedLaunch) -> Tensor:
    """Mean of phi(q) over the real tokens, (B, heads, BD)."""
    sums = launch.per_chunk(launch.bd)
    _mean_kernel[launch.grid](
        q, launch.mask, sums, *strides(q), *launch.sizes, **launch.blocks, **launch.has_mask
    )
    mean = sums.sum(2) / launch.count()[..., None]
    # Padded channels have phi(0).
    mean[..., launch.dim :] = 0
    return mean


def make_state(
    k: Tensor, v: Tensor, mean: Optional[Tensor], eps: float, launch: KernelisedLaunch
) -> State:
    """The normalised sums over all tokens."""
    bd = launch.bd
    s, z, top, mass = (launch.per_chunk(*shape) for shape in ((bd, bd), (bd,), (), ()))
    _state_kernel[launch.grid](
        k, v, launch.mask, launch.cos, launch.sin, k if mean is None else mean, s, z, top, mass,
        *strides(k), *strides(v), *launch.sizes, launch.scale,
        WEIGHTED=launch.weighted, **launch.blocks, **launch.has_mask, **launch.rotary,
    )  # fmt: skip
    if launch.weighted:
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
    eps = torch.full_like(total, eps) / (1 if launch.weighted else total.clamp(min=1))
    return State(s, z, eps, lse, z.new_empty(0) if mean is None else mean)


def read_out(q: Tensor, state: State, launch: KernelisedLaunch) -> Tensor:
    """(B, heads, N, d)."""
    out = token_major(q)
    _readout_kernel[launch.grid](
        q, launch.cos, launch.sin, state.s, state.z, state.eps, out,
        *strides(q), *strides(out), *launch.sizes, **launch.blocks, **launch.rotary,
    )  # fmt: skip
    return out


def backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, state: State, launch: KernelisedLaunch
) -> Tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v."""
    bd = launch.bd
    dq, dk, dv = (token_major(x) for x in (q, k, v))
    ds, dz, d_mean = (launch.per_chunk(*shape) for shape in ((bd, bd), (bd,), (bd,)))

    def queries(d_mean: Tensor, **flags: bool) -> None:
        _query_backward_kernel[launch.grid](
            q, grad, launch.mask, launch.cos, launch.sin, state.s, state.z, state.eps,
            d_mean, dq, ds, dz, *strides(q), *strides(grad), *strides(dq), *launch.sizes,
            launch.root, **launch.blocks, **launch.has_mask, **launch.rotary, **flags,
        )  # fmt: skip

    queries(q, SUM=True, WRITE=not launch.weighted, HAS_MEAN=False)
    sum_ds, sum_dz = ds.sum(2), dz.sum(2)
    # What the softmax subtracts, sum_j w_j dw_j, in closed form.
    delta = (sum_ds * state.s).sum((2, 3)) + (sum_dz * state.z).sum(2)
    _key_backward_kernel[launch.grid](
        k, v, launch.mask, launch.cos, launch.sin, state.mean if launch.weighted else k,
        state.lse, delta, sum_ds, sum_dz, dk, dv, d_mean,
        *strides(k), *strides(v), *strides(dk), *launch.sizes, launch.scale, launch.root,
        WEIGHTED=launch.weighted, **launch.blocks, **launch.has_mask, **launch.rotary,
    )  # fmt: skip
    if launch.weighted:
        d_mean = d_mean.sum(2) / launch.count()[..., None]
        queries(d_mean, SUM=False, WRITE=True, HAS_MEAN=True)
    return dq, dk, dv
