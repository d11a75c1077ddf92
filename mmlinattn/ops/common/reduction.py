"""Reduction of the partial sums of a head: one kernel between two passes over the tokens."""

from typing import NamedTuple, Optional, Tuple

import triton
import triton.language as tl
from torch import Tensor

from .triton_helpers import LOWEST

# Elements and chunks that a program holds at once.
COLUMNS, CHUNKS = 64, 32
SUM, MEAN, SOFTMAX = 0, 1, 2


@triton.jit
def _reduce_kernel(
    PARTS, TOP, MASS, OUT, TOTAL,
    outer, heads, splits, stride, ROWS: tl.constexpr, COLS: tl.constexpr,
    M: tl.constexpr, D: tl.constexpr, BS: tl.constexpr, BC: tl.constexpr, MODE: tl.constexpr,
):  # fmt: skip
    """Sum (ROWS, COLS) parts over ``outer`` times ``splits`` chunks of a head, into (M, D).

    MODE 1 divides by the sum of the row masses. MODE 2 first weights by ``exp(top)`` relative to
    the largest top, in any order.
    """
    head = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BC + tl.arange(0, BC)
    row, col = at // COLS, at % COLS
    inside = at < ROWS * COLS
    total = tl.zeros((BC,), tl.float32)
    mass, top = tl.zeros((BC,), tl.float32), tl.full((BC,), LOWEST, tl.float32)
    for start in range(0, outer * splits, BS):
        place = start + tl.arange(0, BS)
        chunk = (head + (place // splits) * heads) * splits + place % splits
        here = (place < outer * splits)[:, None] & inside[None, :]
        part = tl.load(PARTS + chunk[:, None] * stride + at[None, :], mask=here, other=0.0)
        if MODE > 0:
            of_row = chunk[:, None] * ROWS + row[None, :]
            masses = tl.load(MASS + of_row, mask=here, other=0.0)
            if MODE == 2:
                tops = tl.load(TOP + of_row, mask=here, other=LOWEST)
                highest = tl.maximum(top, tl.max(tops, 0))
                fade, weight = tl.exp(top - highest), tl.exp(tops - highest[None, :])
                total, mass, top = total * fade, mass * fade, highest
                part, masses = part * weight, masses * weight
            mass += tl.sum(masses, 0)
        total += tl.sum(part, 0)
    if MODE > 0:
        total = total / tl.where(mass > 0, mass, 1.0)
        value = mass
        value = top + tl.log(tl.maximum(mass, 1e-30)) if MODE == 2 else tl.maximum(mass, 1.0)
        tl.store(TOTAL + head * ROWS + row, value, mask=inside & (col == 0))
    where = head * M * D + row * D + col
    total = total.to(OUT.dtype.element_ty)
    tl.store(OUT + where, total, mask=inside & (row < M) & (col < D))


class Masses(NamedTuple):
    """Weights of chunks in a mean, (B, heads, splits, rows) each; ``top`` None for equal weights.

    Attributes:
        mass: sum of the weights, divided by ``exp(top)``.
        top: largest exponent.
    """

    mass: Tensor
    top: Optional[Tensor] = None


def add_chunks(parts: Tensor, out: Tensor, part: int = 0) -> Tensor:
    """Sum over chunks, and over images if ``out`` has no batch dimension.

    Args:
        parts: contiguous float32 (B, heads, splits, P, rows, columns); index ``part`` of P is used.
        out: contiguous ([B,] heads, m, d), any floating dtype, m <= rows, d <= columns; filled.
    """
    batch, heads, *_, _rows, _cols = parts.shape
    outer = batch if out.dim() == 3 else 1
    _reduce(SUM, parts[:, :, :, part], None, out, None, batch // outer * heads, outer, heads)
    return out


def mean_of_chunks(parts: Tensor, masses: Masses) -> Tuple[Tensor, Tensor]:
    """Average chunks by their masses.

    Args:
        parts: contiguous float32 (B, heads, splits, rows, columns).

    Returns:
        the means (B, heads, rows, columns), and (B, heads, rows): the mass, at least 1, or with
        ``top`` the log of the sum of all weights.
    """
    batch, heads, _, rows, cols = parts.shape
    out = parts.new_empty(batch, heads, rows, cols)
    total = parts.new_empty(batch, heads, rows)
    mode = MEAN if masses.top is None else SOFTMAX
    _reduce(mode, parts, masses, out, total, batch * heads, 1, heads)
    return out, total


def _reduce(
    mode: int,
    parts: Tensor,
    masses: Optional[Masses],
    out: Tensor,
    total: Optional[Tensor],
    count: int,
    outer: int,
    heads: int,
) -> None:
    splits, (rows, cols) = parts.shape[2], parts.shape[-2:]
    mass = parts if masses is None else masses.mass
    top = mass if masses is None or masses.top is None else masses.top
    _reduce_kernel[count, triton.cdiv(rows * cols, COLUMNS)](
        parts, top, mass, out, out if total is None else total,
        outer, heads, splits, parts.stride(2), ROWS=rows, COLS=cols,
        M=out.shape[-2], D=out.shape[-1], BS=CHUNKS, BC=COLUMNS, MODE=mode,
        num_warps=4, num_stages=2,
    )  # fmt: skip
