"""Functions that the kernels share: feature maps, products, rotation, loads and stores."""

import functools
import os

import triton
import triton.language as tl

from .feature_maps import KERNEL_FEATURES

ELU1, RELU = (tl.constexpr(KERNEL_FEATURES[name]) for name in ('elu+1', 'relu'))
LOWEST = tl.constexpr(-1e30)
INTERPRETED = tl.constexpr(os.environ.get('TRITON_INTERPRET') == '1')

# Triton compiles a kernel again where an argument is 1, or is the first multiple of 16. For these
# it gains nothing, and maps of many sizes would compile each kernel up to ten times.
SIZES = ('H', 'height', 'width', 'parts', 'splits', 'outer', 'heads', 'swb', 'swh')
kernel = functools.partial(triton.jit, do_not_specialize=SIZES)


@triton.jit
def exp(x):
    """Compute e^x, 0 below 2^-126, where tl.exp is exact by three more instructions."""
    return tl.exp2(x * 1.4426950408889634)


@triton.jit
def feature(x, FEATURE: tl.constexpr):
    """Compute phi(x), one of KERNEL_FEATURES; NaN stays NaN, which max of a GPU would drop."""
    if FEATURE == ELU1:
        x = tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL) + exp(tl.minimum(x, 0.0))
    elif FEATURE == RELU:
        x = tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)
    return x


@triton.jit
def scale_by_slope(grad, phi, FEATURE: tl.constexpr):
    """Multiply by the derivative of :func:`feature` where its value is ``phi``."""
    if FEATURE == ELU1:
        grad *= tl.minimum(phi, 1.0)
    elif FEATURE == RELU:
        grad = tl.where(phi > 0, grad, 0.0)
    return grad


@triton.jit
def rounded(x, kind: tl.constexpr):
    """Round float32 to ``kind`` as a GPU does; the interpreter keeps the rounded float32."""
    if not INTERPRETED:
        x = x.to(kind)
    elif kind == tl.bfloat16:  # the interpreter would truncate
        bits = x.to(tl.int32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000
        x = bits.to(tl.float32, bitcast=True)
    else:
        x = x.to(kind).to(tl.float32)
    return x


@triton.jit
def transposed(x, kind: tl.constexpr):
    """Transpose a factor of :func:`product`.

    Rounded before: so a block that is in shared memory is read in the other order, not copied.
    """
    return tl.trans(rounded(x, kind))


@triton.jit
def product(a, b, kind: tl.constexpr):
    """Multiply matrices rounded to ``kind``, with sums in float32.

    float32 factors are split into TF32 parts and multiplied in three products, regardless of
    torch's setting. From 128 x 128 on the parts would not fit shared memory: IEEE float32 there.
    """
    wide: tl.constexpr = (a.shape[0] >= 128) + (a.shape[1] >= 128) + (b.shape[1] >= 128) > 1
    precision: tl.constexpr = 'ieee' if wide else 'tf32x3'
    return tl.dot(rounded(a, kind), rounded(b, kind), input_precision=precision)


@triton.jit
def product_across(a, b, kind: tl.constexpr):
    """Multiply a matrix of 64 rows and more by few columns.

    sm_90 is fast for 64 rows; float32, in parts, fits the registers the other way round.
    """
    if kind == tl.float32:
        return tl.trans(product(tl.trans(b), tl.trans(a), kind))
    return product(a, b, kind)


@triton.jit
def add_product(total, a, b, kind: tl.constexpr):
    """Add the matrix product of a block to ``total``, a sum over the tokens of a chunk.

    Tensor cores truncate the accumulator, always in one direction: float32 sums are added outside.
    """
    if kind == tl.float32:
        total = tl.fma(product(a, b, kind), tl.full(total.shape, 1.0, tl.float32), total)
    else:
        total += product(a, b, kind)
    return total


@triton.jit
def rotate(x, cos, sin, BN: tl.constexpr, BD: tl.constexpr):
    """Rotate interleaved pairs of (BN, BD) by angles (BN, BD / 2); -sin rotates back."""
    even, odd = tl.split(tl.reshape(x, (BN, BD // 2, 2)))
    turned = tl.join(even * cos - odd * sin, odd * cos + even * sin)
    return tl.reshape(turned, (BN, BD))


@triton.jit
def _within(rows, cols, N, D: tl.constexpr):
    """Return True for tokens ``rows`` and channels ``cols`` of a (N, D) matrix, (R, C)."""
    inside = rows[:, None] < N
    if cols.shape[0] > D:
        inside = inside & (cols[None, :] < D)
    return inside


@triton.jit
def load_rows(base, rows, cols, stride_n, stride_d, N, D: tl.constexpr):
    """Load tokens ``rows`` (R,) of a (N, D) matrix as float32 (R, C), 0 outside."""
    at = base + rows.to(tl.int64)[:, None] * stride_n + cols[None, :] * stride_d
    return tl.load(at, mask=_within(rows, cols, N, D), other=0.0).to(tl.float32)


@triton.jit
def store_rows(base, x, rows, cols, stride_n, stride_d, N, D: tl.constexpr):
    """Store x (R, C) as tokens ``rows`` (R,) of a (N, D) matrix, but nothing outside of it."""
    at = base + rows.to(tl.int64)[:, None] * stride_n + cols[None, :] * stride_d
    tl.store(at, x.to(base.dtype.element_ty), mask=_within(rows, cols, N, D))


@triton.jit
def load_angles(axes, rows, pairs, N, width, COUNT: tl.constexpr):
    """Load cosines and sines (R, pairs) of tokens ``rows`` from the tables of ``Rotary.axes``.

    The tables have COUNT angles per row and column. They stay in caches; tables of all tokens would
    be read from memory.
    """
    height = N // width
    by_row, by_column = (rows // width) * COUNT, (height - 1 + rows % width) * COUNT
    at = tl.where((pairs < COUNT)[None, :], by_row[:, None], by_column[:, None]) + pairs[None, :]
    at = tl.max_contiguous(at, [1, 4])  # copies of 16 bytes would pass the L1 cache by
    inside = (rows < N)[:, None] & (pairs < 2 * COUNT)[None, :]
    cos = tl.load(axes + at, mask=inside, other=0.0).to(tl.float32)
    sin = tl.load(axes + (height + width) * COUNT + at, mask=inside, other=0.0).to(tl.float32)
    return cos, sin


@triton.jit
def packed_image(IMAGES, b, axes):
    """Return the batch of packed image ``b``, its first token, size, width and rotary tables.

    All packed images are one batch. IMAGES is :meth:`.packed.PackedShapes.table`.
    """
    IMAGES += 4 * b
    first, axes = tl.load(IMAGES).to(tl.int64), axes + tl.multiple_of(tl.load(IMAGES + 3), 16)
    return b * 0, first, tl.load(IMAGES + 1), tl.load(IMAGES + 2), axes


@triton.jit
def real_tokens(mask, rows, N, HAS_MASK: tl.constexpr):
    """Return True for ``rows`` that exist and are no padding, (R,) bool."""
    real = rows < N
    if HAS_MASK:
        real = real & (tl.load(mask + rows, mask=real, other=1) == 0)
    return real


@triton.jit
def zero_outside(x, real, cols, D: tl.constexpr, FEATURE: tl.constexpr, MASKED: tl.constexpr):
    """Set phi(x) outside the channels and (MASKED) the real tokens to 0, as phi(0) may be 1."""
    if MASKED:
        x = tl.where(real[:, None], x, 0.0)
    if FEATURE == ELU1 and cols.shape[0] > D:
        x = tl.where(cols[None, :] < D, x, 0.0)
    return x


@triton.jit
def add_rows(total, x):
    """Add the rows of x (R, C) to ``total`` (16, C), mostly without an exchange between threads."""
    return total + tl.sum(tl.reshape(x, (x.shape[0] // 16, 16, x.shape[1])), 0)


@triton.jit
def add_row_pairs(total, x):
    """Add x (R, C) to ``total`` (R / 2, C): rows that a thread holds of a matrix product."""
    pairs = tl.sum(tl.reshape(x, (x.shape[0] // 16, 2, 8, x.shape[1])), 1)
    return total + tl.reshape(pairs, (x.shape[0] // 2, x.shape[1]))


@triton.jit
def sum_parts(PARTS, splits, cols, stride):
    """Sum the partial sums (splits, stride) of a head over the splits."""
    rows = tl.arange(0, 32)
    total = tl.zeros((32, cols.shape[0]), tl.float32)
    for start in range(0, splits, 32):
        at = start + rows
        inside = (at < splits)[:, None]
        total += tl.load(PARTS + at[:, None] * stride + cols[None, :], mask=inside, other=0.0)
    return tl.sum(total, 0)
