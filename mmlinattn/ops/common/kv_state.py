"""Normalised sums over the keys, for linear attention, RALA, MALA and ripple attention.

With weights w_j that sum to 1 over the real tokens, ``S = sum_j w_j rot(phi(k_j)) v_j^T`` and
``z = sum_j w_j phi(k_j)``. Linear attention has equal weights; RALA's are a softmax over the
tokens, computed online. MALA needs ``sum_j w_j v_j`` as well. Each program processes a chunk of
tokens of one head and writes its sums once; :mod:`.reduction` adds the chunks.
"""

from typing import Any, List, Sequence, Tuple

import triton.language as tl
from torch import Tensor

from .launch import CallKey, Tokens, padded
from .reduction import MEAN, SOFTMAX, sum_of_chunks
from .triton_helpers import (
    ELU1,
    LOWEST,
    add_product,
    add_rows,
    exp,
    feature,
    kernel,
    load_angles,
    load_rows,
    packed_image,
    real_tokens,
    rotate,
    rounded,
    sum_parts,
    zero_outside,
)


@kernel
def _kv_state_kernel(
    K, V, MASK, IMAGES, ANGLES, QUERY_SUMS, QUERY_COUNTS, SUMS, TOP, MASS, QUERY_MEAN, QUERY_COUNT,
    skb, skh, skn, skd, svb, svh, svn, svd, H, N, width, CHUNK, parts, scale,
    D: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, FEATURE: tl.constexpr,
    HAS_MASK: tl.constexpr, SCORED: tl.constexpr, ROTARY: tl.constexpr, EXTRA_ROWS: tl.constexpr,
    PACKED: tl.constexpr,
):  # fmt: skip
    """Sum one chunk: S, z and for MALA the values, (BD + EXTRA_ROWS, BD); largest score; mass."""
    head, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    b, h = head // H, head % H
    if PACKED:
        b, first, N, width, ANGLES = packed_image(IMAGES, b, ANGLES)
        K += first * skn
        V += first * svn
    kind = K.dtype.element_ty
    cols, pairs = tl.arange(0, BD), tl.arange(0, BD // 2)
    state, z = tl.zeros((BD, BD), tl.float32), tl.zeros((16, BD), tl.float32)
    top, mass = tl.full((), LOWEST, tl.float32), tl.zeros((BN,), tl.float32)
    if EXTRA_ROWS == 2:
        values = tl.zeros((16, BD), tl.float32)
    if SCORED:
        count = tl.sum(sum_parts(QUERY_COUNTS + head * parts, parts, tl.arange(0, 1), 1), 0)
        mean = sum_parts(QUERY_SUMS + head * parts * BD, parts, cols, BD) / tl.maximum(count, 1.0)
        if split == 0:
            tl.store(QUERY_MEAN + head * BD + cols, mean)
            tl.store(QUERY_COUNT + head, tl.maximum(count, 1.0))
        mean *= scale
    for start in range(split * CHUNK, tl.minimum((split + 1) * CHUNK, N), BN):
        rows = start + tl.arange(0, BN)
        real = real_tokens(MASK + b * N, rows, N, HAS_MASK)
        k = feature(load_rows(K + b * skb + h * skh, rows, cols, skn, skd, N, D), FEATURE)
        # Scored tokens that are not real have no weight.
        k = zero_outside(k, real, cols, D, FEATURE, HAS_MASK or (FEATURE == ELU1 and not SCORED))
        v = load_rows(V + b * svb + h * svh, rows, cols, svn, svd, N, D)
        weight = tl.where(real, 1.0, 0.0)
        if SCORED:
            scores = tl.where(real, tl.sum(k * mean[None, :], 1), LOWEST)
            new_top = tl.maximum(top, tl.max(scores, 0))
            weight *= exp(scores - new_top)
            fade = exp(top - new_top)
            state, z, mass, top = state * fade, z * fade, mass * fade, new_top
            k = k * weight[:, None]
        mass += weight
        z = add_rows(z, k)
        if EXTRA_ROWS == 2:
            values = add_rows(values, tl.where(real[:, None], v, 0.0) if HAS_MASK else v)
        if ROTARY:
            cos, sin = load_angles(ANGLES, rows, pairs, N, width, ROTARY)
            k = rotate(k, cos, sin, BN, BD)
        # The transpose of S: values pass from memory to the tensor cores as they are.
        state = add_product(state, tl.trans(rounded(v, kind)), k, kind)
    state, z, mass = tl.trans(state), tl.sum(z, 0), tl.sum(mass, 0)
    if EXTRA_ROWS == 2:
        values = tl.sum(values, 0)
    if tl.num_programs(1) == 1:  # no other chunk to average with
        inverse = 1 / tl.where(mass > 0, mass, 1.0)
        state, z = state * inverse, z * inverse
        if EXTRA_ROWS == 2:
            values = values * inverse
        mass = top + tl.log(tl.maximum(mass, 1e-30)) if SCORED else tl.maximum(mass, 1.0)
    at = head * tl.num_programs(1) + split
    SUMS += at * (BD + EXTRA_ROWS) * BD
    tl.store(SUMS + cols[:, None] * BD + cols[None, :], state)
    tl.store(SUMS + BD * BD + cols, z)
    if EXTRA_ROWS == 2:
        tl.store(SUMS + (BD + 1) * BD + cols, values)
    tl.store(MASS + at, mass)
    if SCORED:
        tl.store(TOP + at, top)


class KVStateLaunches:
    """Launches of the normalised sums over the keys; ``scratch`` are the shapes that they need.

    The values are tensor 2 of the call. RALA has ``query_splits`` partial sums of the mean query.
    """

    def __init__(
        self, key: CallKey, name: str, k: Tokens, width: int, query_splits: int, **constants: Any
    ) -> None:
        self.scored = constants['SCORED']
        self.launch = key.over_tokens(
            name, _kv_state_kernel, k, (*k.strides, *key.strides[2]), width,
            after=(query_splits, k.dim**-0.5), **constants,
        )  # fmt: skip
        size, splits = padded(k.dim), self.launch.splits
        rows, chunks = size + constants['EXTRA_ROWS'], (k.batch, k.heads, splits)
        scratch: List[Tuple[int, ...]] = [chunks] if self.scored else []
        self.reduce = None
        if splits > 1:
            # One row: all elements of a head share a mass.
            mode = SOFTMAX if self.scored else MEAN
            self.reduce = sum_of_chunks(key, k.batch * k.heads, splits, 1, rows * size, mode=mode)
            scratch += [chunks, (*chunks, rows, size)]
        self.scratch = scratch

    def __call__(
        self, k: Tensor, v: Tensor, mask: Tensor, images: Tensor, axes: Tensor, sums: Any,
        mass: Any, scratch: List[Any], queries: Sequence[Any] = (),
    ) -> None:  # fmt: skip
        """Write ``sums``, (B, heads, BD + extra rows, BD), and ``mass``, (B, heads).

        The mass is the number of real tokens, at least 1; with scores the log of the sum of their
        exponentials. ``queries`` are in RALA partial sums of phi(q) (B, heads, query_splits, BD)
        and their numbers of tokens; the mean (B, heads, BD) and number that are written.
        """
        top = scratch[0] if self.scored else mass
        part_mass, parts = scratch[-2:] if self.reduce else (mass, sums)
        query_sums, query_counts, mean, count = queries or (k, k, k, k)
        self.launch(
            k, v, mask, images, axes, query_sums, query_counts, parts, top, part_mass, mean, count
        )
        if self.reduce:  # else one chunk, which the kernel has normalised
            self.reduce(parts, top, part_mass, sums, sums, mass)
