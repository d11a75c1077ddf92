"""Parts that the kernels share: feature maps, rotation, loads, launches, supported inputs."""

import functools
import os
from typing import Any, Callable, NamedTuple, Optional, Sequence, Tuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import launch_table
from .launch_table import Config

FEATURES = {'identity': 0, 'elu+1': 1, 'relu': 2}
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
MIN_DIM, MAX_DIM = 16, 128
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
    """Compute the derivative of :func:`feature`."""
    if FEATURE == 1:
        x = tl.where(x > 0, 1.0, tl.exp(tl.minimum(x, 0)))
    elif FEATURE == 2:
        x = tl.where(x > 0, 1.0, 0.0)
    else:
        x = tl.full(x.shape, 1.0, tl.float32)
    return x


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
def product(a, b, kind: tl.constexpr):
    """Multiply matrices rounded to ``kind``, with sums in float32.

    float32 factors are split into TF32 parts and multiplied in three products, regardless of
    torch's setting. From 128 x 128 on the parts would not fit shared memory: IEEE float32 there.
    """
    wide: tl.constexpr = (a.shape[0] >= 128) + (a.shape[1] >= 128) + (b.shape[1] >= 128) > 1
    precision: tl.constexpr = 'ieee' if wide else 'tf32x3'
    return tl.dot(rounded(a, kind), rounded(b, kind), input_precision=precision)


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
def rotate(x, cos, sin, ROWS: tl.constexpr, BD: tl.constexpr):
    """Rotate interleaved pairs of (ROWS, BD) by angles (ROWS, BD / 2); -sin rotates back."""
    even, odd = tl.split(tl.reshape(x, (ROWS, BD // 2, 2)))
    turned = tl.join(even * cos - odd * sin, odd * cos + even * sin)
    return tl.reshape(turned, (ROWS, BD))


@triton.jit
def _within(rows, cols, N, D: tl.constexpr):
    inside = rows[:, None] < N
    if cols.shape[0] > D:
        inside = inside & (cols[None, :] < D)
    return inside


@triton.jit
def load_rows(base, rows, cols, stride_n, stride_d, N, D: tl.constexpr):
    """Load tokens ``rows`` (R,) of a (N, D) matrix as float32 (R, C), 0 outside."""
    rows = rows.to(tl.int64)
    at = base + rows[:, None] * stride_n + cols[None, :] * stride_d
    return tl.load(at, mask=_within(rows, cols, N, D), other=0.0).to(tl.float32)


@triton.jit
def store_rows(base, x, rows, cols, stride_n, stride_d, N, D: tl.constexpr):
    rows = rows.to(tl.int64)
    at = base + rows[:, None] * stride_n + cols[None, :] * stride_d
    tl.store(at, x.to(base.dtype.element_ty), mask=_within(rows, cols, N, D))


@triton.jit
def load_angles(axes, rows, pairs, N, width, COUNT: tl.constexpr):
    """Load cosines and sines (R, pairs) of tokens ``rows`` from the tables of ``Rotary.axes``.

    The tables have COUNT angles per row and column. They stay in the L1 cache; tables of all tokens
    would be read from memory.
    """
    height = N // width
    by_row, by_column = (rows // width) * COUNT, (height - 1 + rows % width) * COUNT
    at = tl.where((pairs < COUNT)[None, :], by_row[:, None], by_column[:, None]) + pairs[None, :]
    inside = (rows < N)[:, None] & (pairs < 2 * COUNT)[None, :]
    cos = tl.load(axes + at, mask=inside, other=0.0)
    sin = tl.load(axes + (height + width) * COUNT + at, mask=inside, other=0.0)
    return cos, sin


@triton.jit
def packed_image(IMAGES, b, axes):
    """Return the batch of packed image ``b``, its first token, size, width and rotary tables.

    All packed images are one batch. IMAGES is :meth:`.packed.PackedShapes.table`.
    """
    IMAGES += 4 * b
    first, axes = tl.load(IMAGES).to(tl.int64), axes + tl.load(IMAGES + 3)
    return b * 0, first, tl.load(IMAGES + 1), tl.load(IMAGES + 2), axes


@triton.jit
def real_tokens(mask, rows, N, HAS_MASK: tl.constexpr):
    """Return True for ``rows`` that exist and are no padding, (R,) bool."""
    real = rows < N
    if HAS_MASK:
        real = real & (tl.load(mask + rows, mask=real, other=1) == 0)
    return real


def padded(size: int) -> int:
    """Return the padded size of a dimension in a kernel: the next power of 2, at least 16."""
    return max(16, triton.next_power_of_2(size))


class LaunchPlan(NamedTuple):
    """Partition of the tokens between the programs of a kernel.

    Attributes:
        config: tokens per block, warps, stages.
        chunk: tokens per program.
        splits: programs per head.
    """

    config: Config
    chunk: int
    splits: int


def plan_tokens(
    config: Config, heads: int, num_tokens: int, residents: Optional[int]
) -> LaunchPlan:
    """Choose chunks so that the programs that fit on the device share the tokens.

    At least four blocks per program, because each program writes its sums. In the interpreter
    (``residents`` None) two blocks per program, so that tests see several chunks.
    """
    if residents is None:
        chunk = 2 * config.block
    else:
        blocks = triton.cdiv(triton.cdiv(num_tokens, max(1, residents // heads)), config.block)
        chunk = config.block * max(4, blocks)
    return LaunchPlan(config, chunk, triton.cdiv(num_tokens, chunk))


def residents(config: Config, device: Any) -> int:
    """Return how many programs of a kernel a device runs at once.

    Args:
        device: result of ``torch.cuda.get_device_properties``.
    """
    threads = 32 * config.warps
    of_warp = 8 * triton.cdiv(max(config.registers, 16), 8) * 32  # allocated in steps of 8
    blocks = min(
        device.regs_per_multiprocessor // (of_warp * config.warps),
        # Each program reserves another KiB.
        device.shared_memory_per_multiprocessor // (config.shared + 1024),
        device.max_threads_per_multi_processor // threads,
    )
    return max(1, blocks) * device.multi_processor_count


# Replaces a launch of the table's kernels: called with the name and a function that launches.
around_launch: Optional[Callable[[str, Callable[[], Any]], None]] = None


class Launch:
    """Launcher of the kernels of one call: shared sizes, and the partition of the tokens.

    Args:
        q: (B, heads, N, d).
        mask: (B, N) bool, True = padding, or None.
        others: further block dimensions; with d they select the launch configuration.
    """

    def __init__(self, q: Tensor, mask: Optional[Tensor], *others: int) -> None:
        self.batch, self.heads, self.num_tokens, self.dim = q.shape
        self.root = self.num_tokens**0.5
        self.bd = padded(self.dim)
        self.size = launch_table.size_class(self.dim, *others)
        self.dtype_class = launch_table.kind_of(q.dtype)
        self.mask = (
            q if mask is None else mask.contiguous().view(torch.uint8)
        )  # without a mask: unused
        self.has_mask = dict(HAS_MASK=mask is not None)
        self.device = q.device

    def plan(self, name: str) -> LaunchPlan:
        """Return the plan of a kernel of :mod:`.launch_table`."""
        count = self.batch * self.heads
        index = self.device.index if self.device.type == 'cuda' else None
        return plan_of(name, self.size, self.dtype_class, index, count, self.num_tokens)

    def parts(self, name: str, *shape: int) -> Tensor:
        """Return uninitialised float32 (B, heads, splits, ...) for the sums of a kernel."""
        return self.empty(self.plan(name).splits, *shape)

    def empty(self, *shape: int) -> Tensor:
        """Return uninitialised float32 (B, heads, ...)."""
        size = (self.batch, self.heads, *shape)
        return torch.empty(size, dtype=torch.float32, device=self.device)

    def run(self, name: str, kernel: Any, *args: Any, **flags: Any) -> None:
        """Launch one program per head and chunk of tokens."""
        plan = self.plan(name)
        grid = self.batch * self.heads, plan.splits
        self.start(name, kernel, grid, *args, CHUNK=plan.chunk, BN=plan.config.block, **flags)

    def start(self, name: str, kernel: Any, grid: Sequence[int], *args: Any, **flags: Any) -> None:
        """Launch a kernel on the given grid."""
        config = self.plan(name).config
        flags.update(num_warps=config.warps, num_stages=config.stages)
        if around_launch is None:
            kernel[grid](*args, **flags)
        else:
            around_launch(name, lambda: kernel[grid](*args, **flags))


@functools.lru_cache(maxsize=4096)
def plan_of(
    name: str, size: str, dtype_class: str, index: Optional[int], heads: int, num_tokens: int
) -> LaunchPlan:
    """Return the plan of a kernel on a CUDA device, or in the interpreter (``index`` None)."""
    if index is None:
        return plan_tokens(launch_table.INTERPRETED, heads, num_tokens, None)
    device = torch.cuda.get_device_properties(index)
    config = launch_table.table(index)[name][dtype_class][size]
    return plan_tokens(config, heads, num_tokens, residents(config, device))


def custom_operator(name: str, launch: Callable[..., Any]) -> Any:
    """Return a custom operator that calls ``launch`` on the device of its first tensor.

    Its arguments are those of the function, whose annotations are the schema.
    """

    @functools.wraps(launch)
    def on_device(x: Tensor, *args: Any) -> Any:
        with torch.cuda.device_of(x):
            return launch(x, *args)

    return torch.library.custom_op(f'mmlinattn::{name}', on_device, mutates_args=())


def strides(x: Tensor) -> Tuple[int, ...]:
    """Return the strides of a (B, heads, N, d) tensor as kernel arguments."""
    return tuple(x.stride(i) for i in range(4))


def unsupported_tokens(q: Tensor, v: Tensor, kernels: Sequence[str], *others: int) -> Optional[str]:
    """Return why kernels cannot serve these tokens, or None if they can.

    Args:
        q: (B, heads, N, d).
        v: (B, heads, N, d_v).
        kernels: names in :mod:`.launch_table`, which holds their shared memory.
        others: see :class:`Launch`.
    """
    if q.dtype not in DTYPES:
        return f'kernels support float16, bfloat16 and float32, got {q.dtype}'
    if not MIN_DIM <= q.shape[-1] <= MAX_DIM:
        return f'kernels support head dims {MIN_DIM} to {MAX_DIM}, got {q.shape[-1]}'
    if v.shape[-1] != q.shape[-1]:
        return f'kernels need values as wide as keys, got {v.shape[-1]} and {q.shape[-1]}'
    if q.numel() == 0:
        return f'kernels need tokens, got {tuple(q.shape)}'
    if not q.is_cuda:
        return None
    device = torch.cuda.get_device_properties(q.device)
    if device.major < 8:
        return f'kernels need compute capability 8.0, {device.name} has {device.major}'
    size, kind = launch_table.size_class(q.shape[-1], *others), launch_table.kind_of(q.dtype)
    entries = {name: launch_table.entry(q.device.index, name, kind, size) for name in kernels}
    missing = [name for name, config in entries.items() if config is None]
    if missing:
        return f'{missing[0]} has no configuration for {device.name}, {q.dtype} and size {size}'
    needed = max(config.shared for config in entries.values() if config is not None)
    available = device.shared_memory_per_block_optin  # type: ignore[attr-defined]  # not in its types
    if needed > available:
        return f'a kernel needs {needed} bytes of shared memory, {device.name} has {available}'
    return None
