"""What all kernels share: feature maps, rotation, launch sizes, what they can serve."""

import os
from typing import Dict, Optional, Tuple

import torch
import triton
import triton.language as tl
from torch import Tensor

FEATURES = {'identity': 0, 'elu+1': 1, 'relu': 2}
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
MIN_DIM, MAX_DIM = 16, 128
# Loops are not pipelined: that would multiply the shared memory they take.
OPTIONS = dict(num_stages=1)
LOWEST = tl.constexpr(-1e30)
INTERPRETED = tl.constexpr(os.environ.get('TRITON_INTERPRET') == '1')


@triton.jit
def feature(x, FEATURE: tl.constexpr):
    if FEATURE == 1:
        x = tl.where(x > 0, x + 1, tl.exp(tl.minimum(x, 0)))
    elif FEATURE == 2:
        x = tl.maximum(x, 0)
    return x


@triton.jit
def slope(x, FEATURE: tl.constexpr):
    """Derivative of :func:`feature`."""
    if FEATURE == 1:
        x = tl.where(x > 0, 1.0, tl.exp(tl.minimum(x, 0)))
    elif FEATURE == 2:
        x = tl.where(x > 0, 1.0, 0.0)
    else:
        x = tl.full(x.shape, 1.0, tl.float32)
    return x


@triton.jit
def rounded(x, kind: tl.constexpr):
    """float32 as a GPU rounds it to kind; in the interpreter still float32."""
    if not INTERPRETED:
        x = x.to(kind)
    elif kind == tl.bfloat16:  # the interpreter would cut it off
        bits = x.to(tl.int32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000
        x = bits.to(tl.float32, bitcast=True)
    else:
        x = x.to(kind).to(tl.float32)
    return x


@triton.jit
def product(a, b, kind: tl.constexpr):
    """Matrix product of factors rounded to kind, summed in float32."""
    return tl.dot(rounded(a, kind), rounded(b, kind), input_precision='ieee')


@triton.jit
def rotate(x, cos, sin, ROWS: tl.constexpr, BD: tl.constexpr):
    """Interleaved pairs of (ROWS, BD) turned by angles (ROWS, BD / 2); -sin turns back."""
    even, odd = tl.split(tl.reshape(x, (ROWS, BD // 2, 2)))
    turned = tl.join(even * cos - odd * sin, odd * cos + even * sin)
    return tl.reshape(turned, (ROWS, BD))


@triton.jit
def load_rows(base, rows, cols, stride_n, stride_d, N, D):
    """Tokens ``rows`` (R,) of a (N, D) matrix as float32 (R, C), 0 outside."""
    rows = rows.to(tl.int64)
    inside = (rows[:, None] < N) & (cols[None, :] < D)
    at = base + rows[:, None] * stride_n + cols[None, :] * stride_d
    return tl.load(at, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def store_rows(base, x, rows, cols, stride_n, stride_d, N, D):
    rows = rows.to(tl.int64)
    inside = (rows[:, None] < N) & (cols[None, :] < D)
    at = base + rows[:, None] * stride_n + cols[None, :] * stride_d
    tl.store(at, x.to(base.dtype.element_ty), mask=inside)


@triton.jit
def load_angles(axes, rows, pairs, N, D, width):
    """Cosines and sines (R, pairs) of tokens ``rows``, from :meth:`Rotary.axes` of their map.

    The two small tables stay in the first cache, where tables of all tokens would be read from
    memory.
    """
    height, count = N // width, D // 4
    of_row = pairs < count  # the others turn by the column
    places = tl.where(of_row[None, :], (rows // width)[:, None], (height + rows % width)[:, None])
    at = places * count + tl.where(of_row, pairs, pairs - count)[None, :]
    inside = (rows[:, None] < N) & (2 * pairs[None, :] < D)
    cos = tl.load(axes + at, mask=inside, other=0.0)
    sin = tl.load(axes + (height + width) * count + at, mask=inside, other=0.0)
    return cos, sin


@triton.jit
def real_tokens(mask, rows, N, HAS_MASK: tl.constexpr):
    """Which of ``rows`` exist and are no padding, (R,) bool."""
    real = rows < N
    if HAS_MASK:
        real = real & (tl.load(mask + rows, mask=real, other=1) == 0)
    return real


def padded(size: int) -> int:
    """What a kernel pads a dimension to: the next power of 2, at least 16."""
    return max(16, triton.next_power_of_2(size))


def block_size(block_dim: int) -> int:
    """Tokens that a program holds at once."""
    return 64 if block_dim <= 64 else 32


def chunk_size(q: Tensor, block: int) -> int:
    """Tokens of one program, so that a few programs for each multiprocessor share the tokens.

    Four blocks at least: what a program sums it writes, and that must be little to its tokens.
    On a CPU, where an interpreter runs the programs, two blocks: tests then see several chunks.
    """
    batch, heads, num_tokens, _ = q.shape
    if not q.is_cuda:
        return 2 * block
    programs = 4 * torch.cuda.get_device_properties(q.device).multi_processor_count
    splits = max(1, programs // (batch * heads))
    return block * max(4, triton.cdiv(triton.cdiv(num_tokens, splits), block))


class Launch:
    """Sizes and options that all kernels of one call share: a program a head and chunk of tokens.

    Args:
        q: (B, heads, N, d).
        mask: (B, N) bool, True = padding, or None.
        widest: largest padded dimension of a block, decides how many tokens a program holds.
    """

    def __init__(self, q: Tensor, mask: Optional[Tensor], widest: int) -> None:
        self.batch, self.heads, self.num_tokens, self.dim = q.shape
        self.root = self.num_tokens**0.5
        self.bd, self.bn = padded(self.dim), block_size(widest)
        self.chunk = chunk_size(q, self.bn)
        self.splits = triton.cdiv(self.num_tokens, self.chunk)
        self.grid = (self.batch * self.heads, self.splits)
        self.mask = mask_bytes(mask, q)
        self.has_mask = dict(HAS_MASK=mask is not None)
        self.device = q.device

    def per_chunk(self, *shape: int) -> Tensor:
        """Uninitialised float32 (B, heads, splits, ...)."""
        size = (self.batch, self.heads, self.splits, *shape)
        return torch.empty(size, dtype=torch.float32, device=self.device)


def strides(x: Tensor) -> Tuple[int, ...]:
    """Of (B, heads, N, d), for a kernel."""
    return tuple(x.stride(i) for i in range(4))


def mask_bytes(key_padding_mask: Optional[Tensor], q: Tensor) -> Tensor:
    """(B, N) contiguous bytes, 1 = padding; any tensor stands for no mask."""
    return q if key_padding_mask is None else key_padding_mask.contiguous().view(torch.uint8)


def refuses(q: Tensor, v: Tensor, shared_kib: Dict[str, Tuple[int, int]]) -> Optional[str]:
    """Why no kernel can serve these tokens, or None.

    Args:
        q: (B, heads, N, d).
        v: (B, heads, N, d_v).
        shared_kib: shared memory that the largest kernel takes in ``half`` types and in ``float``,
            for padded dimensions up to 64 and above; the most of sm_80, sm_90 and tested Triton.
    """
    if q.dtype not in DTYPES:
        return f'kernels are for float16, bfloat16 and float32, got {q.dtype}'
    if not MIN_DIM <= q.shape[-1] <= MAX_DIM:
        return f'kernels are for head dims {MIN_DIM} to {MAX_DIM}, got {q.shape[-1]}'
    if v.shape[-1] != q.shape[-1]:
        return f'kernels are for values as wide as keys, got {v.shape[-1]} and {q.shape[-1]}'
    if q.numel() == 0:
        return f'kernels need tokens, got {tuple(q.shape)}'
    if not q.is_cuda:
        return None
    device = torch.cuda.get_device_properties(q.device)
    if device.major < 8:
        return f'kernels need compute capability 8.0, {device.name} has {device.major}'
    kind = 'float' if q.dtype == torch.float32 else 'half'
    needed = shared_kib[kind][int(padded(q.shape[-1]) > 64)]
    # torch's types lack it.
    available = device.shared_memory_per_block_optin // 1024  # type: ignore[attr-defined]
    if needed > available:
        return f'the kernel takes {needed} KiB of shared memory, {device.name} has {available}'
    return None
