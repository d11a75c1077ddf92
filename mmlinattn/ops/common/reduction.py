"""Reduction of the partial sums of a head: one kernel between two passes over the tokens."""

from typing import Optional, Tuple

import triton
import triton.language as tl

from .launch import CallKey, Launch
from .launch_table import Config
from .triton_helpers import LOWEST, exp, kernel

# Elements that a program holds at once: the chunks, at most 32, by their columns.
ELEMENTS, CHUNKS = 2048, 32
SUM, MEAN, SOFTMAX = 0, 1, 2


@kernel
def _reduce_kernel(
    PARTS, TOP, MASS, OUT, OUT2, TOTAL,
    outer, heads, splits, stride, ROWS: tl.constexpr, COLS: tl.constexpr,
    M: tl.constexpr, D: tl.constexpr, BS: tl.constexpr, BC: tl.constexpr, MODE: tl.constexpr,
):  # fmt: skip
    """Sum (ROWS, COLS) parts over ``outer`` times ``splits`` chunks of a head, into (M, D).

    Programs of the third grid axis sum the second of two parts of each chunk, into OUT2. MODE 1
    divides by the sum of the row masses. MODE 2 first weights by ``exp(top)`` relative to the
    largest top, in any order.
    """
    head, second = tl.program_id(0).to(tl.int64), tl.program_id(2)
    PARTS += second * ROWS * COLS
    if second > 0:
        OUT = OUT2
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
                fade, weight = exp(top - highest), exp(tops - highest[None, :])
                total, mass, top = total * fade, mass * fade, highest
                part, masses = part * weight, masses * weight
            mass += tl.sum(masses, 0)
        total += tl.sum(part, 0)
    if MODE > 0:
        total = total / tl.where(mass > 0, mass, 1.0)
        value = top + tl.log(tl.maximum(mass, 1e-30)) if MODE == 2 else tl.maximum(mass, 1.0)
        tl.store(TOTAL + head * ROWS + row, value, mask=inside & (col == 0))
    where = head * M * D + row * D + col
    total = total.to(OUT.dtype.element_ty)
    tl.store(OUT + where, total, mask=inside & (row < M) & (col < D))


def sum_of_chunks(
    key: CallKey, count: int, splits: int, rows: int, cols: int, *, outer: int = 1,
    size: Optional[Tuple[int, int]] = None, parts: int = 1, mode: int = SUM,
) -> Launch:  # fmt: skip
    """Return the launch that sums chunks, with arguments ``(PARTS, TOP, MASS, OUT, OUT2, TOTAL)``.

    SUM reads PARTS alone. MEAN and SOFTMAX average rows by their masses, MASS (B, heads, splits,
    rows); SOFTMAX has masses relative to the exponential of TOP. They write TOTAL (B, heads, rows):
    masses of at least 1, with SOFTMAX the log of the sum of all weights.

    PARTS is contiguous (B, heads, splits, parts, rows, cols); two parts have the sums OUT and OUT2,
    of ``size`` (m, d) with ``m <= rows`` and ``d <= cols``. ``count`` is the number of sums: heads
    of all images, or of one if ``outer`` images are summed.
    """
    m, d = size or (rows, cols)
    chunks = min(CHUNKS, triton.next_power_of_2(outer * splits))
    columns = min(ELEMENTS // chunks, max(16, triton.next_power_of_2(rows * cols)))
    constants = dict(ROWS=rows, COLS=cols, M=m, D=d, BS=chunks, BC=columns, MODE=mode)
    config = Config(block=columns, warps=4, stages=2, registers=0, shared=0)
    grid = (count, -(-rows * cols // columns), parts)
    sizes = (outer, count, splits, parts * rows * cols)
    return Launch(_reduce_kernel, grid, sizes, constants, config, key.aligned)
