"""Launch configurations of the Triton kernels, by architecture, kernel and dtype class.

Each row has the configurations of heads of up to 32, 64 and 128 channels, see :class:`Config`; the
rows of kernels with anchors end in the number of anchors that they are for. A width without an
entry has no kernel, which would mostly wait for spilled registers: the torch form serves it.

``sm_90`` is for data centre GPUs of Hopper and newer, ``sm_80`` for all others from compute
capability 8.0 on. Rows of ``sm_90`` in half types with 64 channels were the fastest on an H100
(65,536 tokens of 8 heads, 16,384 of 128). Rotary tables were float32 then. The other rows and those
of ripple attention were chosen by registers, stack and shared memory, compiled with Triton 3.6.
``tests/test_ops/compile_kernels.py`` compares the table with the compiler.
"""

import functools
from operator import index
from typing import Any, Dict, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

WIDTHS = (32, 64, 128)
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
MIN_DIM, MAX_DIM = 16, 128


class Config(NamedTuple):
    """Launch configuration of a kernel, and what the compiled kernel takes."""

    block: int  # tokens; tiles of ripple attention go row by row
    warps: int  # of a program
    stages: int  # blocks of a loop that are loaded ahead
    registers: int  # of a thread
    shared: int  # memory of a program, in KiB


# Small blocks in Triton's interpreter, so that tests see several.
INTERPRETED = Config(block=32, warps=4, stages=1, registers=0, shared=0)


def find(
    architecture: str, kernel: str, dtype: torch.dtype, dim: int, num_anchors: int = 0
) -> Optional[Config]:
    """Return the configuration of a kernel for heads of ``dim`` channels, or None if it has none.

    ``kernel`` is its name in the table, without dtype and anchors.
    """
    row = f'{kernel}, {"float" if dtype == torch.float32 else "half"}'
    if num_anchors:
        row += f', {64 if num_anchors <= 64 else 128}'
    width = next(i for i, size in enumerate(WIDTHS) if dim <= size)
    found = TABLE[architecture].get(row, (None,) * 3)[width]
    return None if found is None else Config(*found)


def architecture(device: Any) -> str:
    """Return the row of the table for a GPU, by the properties that torch knows."""
    # Consumer GPUs of newer architectures have as little shared memory as sm_80, or less.
    return 'sm_90' if device.shared_memory_per_block_optin >= 227 * 1024 else 'sm_80'


@torch.compiler.assume_constant_result
def _unsupported(*args: Any) -> Optional[str]:
    return _find_unsupported(*args)


def unsupported_tokens(
    q: Tensor, value_dim: int, kernels: Tuple[str, ...], num_anchors: int = 0
) -> Optional[str]:
    """Return why kernels cannot serve queries (B, heads, N, d), or None if they can."""
    # With dynamic=True the compiler has symbols for widths, too; this fixes them.
    dim, value_dim, num_anchors = index(q.shape[3]), index(value_dim), index(num_anchors)
    return _unsupported(q.get_device(), q.dtype, dim, value_dim, kernels, num_anchors)


@functools.cache
def _find_unsupported(
    index: int, dtype: torch.dtype, dim: int, value_dim: int, kernels: Tuple[str, ...],
    num_anchors: int,
) -> Optional[str]:  # fmt: skip
    if dtype not in DTYPES:
        return f'kernels support float16, bfloat16 and float32, got {dtype}'
    if not MIN_DIM <= dim <= MAX_DIM:
        return f'kernels support head dims {MIN_DIM} to {MAX_DIM}, got {dim}'
    if value_dim != dim:
        return f'kernels need values as wide as keys, got {value_dim} and {dim}'
    if index < 0:
        return None
    device: Any = torch.cuda.get_device_properties(index)
    if device.major in (10, 11) and dtype == torch.float32 and dim > 64:
        return f'float32 products of head dim {dim} are TF32 on {device.name} (Triton 3.6)'
    shared = device.shared_memory_per_block_optin // 1024
    for name in kernels:
        config = find(architecture(device), name, dtype, dim, num_anchors)
        if config is None:
            size = f'head dim {dim}' + f' and {num_anchors} anchors' * bool(num_anchors)
            return f'{name} has no configuration for {device.name}, {dtype}, {size}'
        if config.shared > shared:
            needed = f'{config.shared} KiB of shared memory'
            return f'{name} needs {needed}, {device.name} has {shared}'
    return None


# fmt: off
TABLE: Dict[str, Dict[str, Tuple[Optional[tuple], ...]]] = {
    'sm_80': {
        'adaptive, half': ((64, 4, 3, 128, 22), (64, 4, 3, 202, 64), None),
        'adaptive, float': ((64, 8, 2, 227, 40), (32, 8, 2, 174, 120), None),
        'adaptive_backward, half': ((64, 8, 2, 255, 20), (16, 8, 2, 255, 52), None),
        'adaptive_backward, float': ((16, 8, 2, 169, 36), (16, 8, 2, 255, 136), None),
        'anchor_backward, half, 64': ((32, 4, 3, 255, 64), (16, 4, 1, 229, 78), (16, 8, 1, 255, 142)),
        'anchor_backward, half, 128': ((16, 8, 2, 228, 128), (16, 8, 1, 255, 184), (16, 8, 1, 255, 300)),
        'anchor_output, half, 64': ((64, 4, 3, 80, 20), (64, 4, 3, 133, 40), (64, 8, 2, 96, 64)),
        'anchor_output, half, 128': ((64, 8, 2, 123, 24), (64, 8, 2, 200, 48), (64, 8, 2, 102, 96)),
        'anchor_output, float, 64': ((64, 8, 2, 172, 48), (64, 8, 2, 255, 96), (32, 8, 2, 220, 160)),
        'anchor_output_backward, half, 64': ((64, 4, 3, 96, 28), (64, 4, 3, 138, 48), (64, 8, 2, 100, 56)),
        'anchor_output_backward, half, 128': ((64, 8, 2, 128, 32), (64, 8, 2, 248, 48), (64, 8, 2, 240, 80)),
        'anchor_output_backward, float, 64': ((64, 8, 2, 226, 64), (32, 8, 1, 255, 48), (32, 8, 2, 245, 112)),
        'anchor_solver, half, 64': ((64, 4, 1, 246, 48), (64, 4, 1, 254, 64), (64, 8, 1, 255, 96)),
        'anchor_solver, half, 128': ((64, 8, 1, 255, 80), None, None),
        'anchor_solver, float, 64': ((64, 4, 1, 246, 48), (64, 4, 1, 254, 64), (64, 8, 1, 255, 96)),
        'anchor_solver_backward, half, 64': ((64, 4, 1, 254, 48), (64, 8, 1, 255, 64), (64, 8, 1, 255, 96)),
        'anchor_solver_backward, half, 128': ((64, 8, 1, 255, 128), None, None),
        'anchor_solver_backward, float, 64': ((64, 4, 1, 252, 48), (64, 8, 1, 255, 64), (64, 8, 1, 255, 96)),
        'anchor_state, half, 64': ((64, 4, 3, 168, 40), (64, 4, 3, 246, 72), (16, 8, 2, 254, 46)),
        'anchor_state, half, 128': ((32, 8, 2, 252, 64), (32, 8, 1, 255, 64), (32, 8, 1, 255, 72)),
        'anchor_state, float, 64': ((32, 8, 2, 254, 60), (16, 8, 2, 255, 84), (32, 8, 2, 255, 192)),
        'key_backward, half': ((64, 4, 3, 90, 24), (64, 4, 3, 178, 56), (64, 8, 2, 128, 112)),
        'key_backward, float': ((64, 8, 2, 128, 40), (32, 8, 2, 174, 88), (16, 8, 1, 80, 80)),
        'kv_state, half': ((64, 4, 3, 96, 12), (64, 4, 3, 168, 24), (64, 8, 2, 232, 64)),
        'kv_state, float': ((64, 8, 2, 166, 32), (64, 8, 2, 240, 64), (32, 8, 1, 179, 64)),
        'mala_key_backward, half': ((64, 4, 3, 146, 16), (64, 8, 3, 255, 40), (32, 8, 2, 255, 80)),
        'mala_key_backward, float': ((64, 8, 2, 238, 48), (32, 8, 2, 165, 96), (16, 8, 1, 110, 80)),
        'mala_kv_state, half': ((64, 4, 3, 122, 28), (64, 4, 3, 168, 56), (64, 8, 2, 255, 64)),
        'mala_kv_state, float': ((64, 8, 2, 202, 40), (64, 8, 2, 254, 80), None),
        'mala_query_backward, half': ((64, 4, 3, 222, 26), (32, 4, 3, 255, 32), (16, 8, 2, 250, 64)),
        'mala_query_backward, float': ((32, 8, 2, 254, 24), (16, 8, 2, 216, 48), (16, 8, 1, 255, 80)),
        'mala_query_output, half': ((64, 4, 3, 96, 22), (64, 4, 3, 142, 48), (64, 8, 2, 168, 80)),
        'mala_query_output, float': ((64, 8, 2, 126, 32), (64, 8, 2, 255, 80), (16, 8, 2, 64, 88)),
        'query_backward, half': ((64, 4, 3, 168, 22), (64, 4, 2, 255, 26), (32, 8, 1, 255, 64)),
        'query_backward, float': ((64, 8, 2, 254, 32), (32, 8, 1, 255, 48), (16, 8, 1, 255, 80)),
        'query_mean, half': ((128, 4, 1, 48, 4), (128, 4, 1, 56, 1), (128, 4, 1, 72, 2)),
        'query_mean, float': ((128, 4, 1, 62, 1), (128, 4, 1, 70, 1), (128, 4, 1, 89, 2)),
        'query_output, half': ((64, 4, 3, 125, 14), (64, 4, 3, 215, 32), (64, 8, 2, 255, 64)),
        'query_output, float': ((64, 8, 2, 120, 24), (64, 8, 2, 252, 64), (16, 8, 2, 64, 80)),
        'rala_key_backward, half': ((64, 4, 3, 168, 16), (64, 8, 3, 255, 40), (32, 8, 2, 255, 80)),
        'rala_key_backward, float': ((64, 8, 2, 254, 48), (32, 8, 1, 255, 72), (16, 8, 1, 128, 80)),
        'rala_kv_state, half': ((64, 4, 3, 128, 20), (64, 4, 3, 254, 40), (32, 8, 2, 226, 64)),
        'rala_kv_state, float': ((64, 8, 2, 255, 40), (32, 8, 2, 172, 40), None),
        'rala_query_backward, half': ((64, 4, 3, 109, 14), (64, 4, 3, 180, 32), (64, 8, 2, 175, 64)),
        'rala_query_backward, float': ((64, 8, 2, 126, 24), (32, 8, 2, 165, 48), (16, 8, 1, 126, 72)),
        'rala_query_output, half': ((64, 4, 3, 96, 22), (64, 4, 3, 168, 48), (64, 8, 2, 228, 80)),
        'rala_query_output, float': ((64, 8, 2, 128, 32), (64, 8, 2, 255, 80), (16, 8, 2, 64, 88)),
        'rala_query_sums, half': ((64, 4, 3, 168, 24), (64, 4, 3, 255, 50), (32, 8, 2, 255, 64)),
        'rala_query_sums, float': ((64, 8, 2, 252, 40), (32, 8, 2, 255, 64), (16, 8, 1, 255, 80)),
        'ripple, half': ((16, 4, 3, 96, 8), (16, 4, 3, 164, 24), (16, 8, 2, 200, 80)),
        'ripple, float': ((16, 4, 1, 184, 8), (16, 4, 1, 255, 16), None),
        'ripple_far_backward, half': ((64, 4, 3, 96, 17), (64, 4, 3, 189, 34), (64, 8, 2, 178, 37)),
        'ripple_far_backward, float': ((32, 8, 1, 128, 4), (32, 8, 2, 172, 19), (32, 8, 1, 231, 32)),
        'ripple_key_backward, half': ((16, 4, 1, 158, 16), (16, 4, 1, 211, 34), (16, 8, 1, 255, 160)),
        'ripple_key_backward, float': ((16, 8, 1, 255, 40), (16, 8, 1, 255, 72), None),
        'ripple_query_backward, half': ((16, 4, 3, 244, 12), (16, 4, 1, 250, 24), (16, 8, 1, 255, 64)),
        'ripple_query_backward, float': ((16, 8, 1, 255, 18), (16, 8, 1, 255, 36), None),
    },
    'sm_90': {
        'adaptive, half': ((64, 4, 3, 98, 26), (64, 4, 3, 209, 72), None),
        'adaptive, float': ((64, 8, 2, 206, 40), (32, 8, 2, 174, 120), None),
        'adaptive_backward, half': ((32, 8, 2, 255, 16), (32, 8, 2, 244, 56), None),
        'adaptive_backward, float': ((16, 8, 2, 169, 36), (16, 8, 1, 255, 144), None),
        'anchor_backward, half, 64': ((32, 4, 3, 187, 68), (32, 4, 3, 216, 96), (32, 8, 2, 247, 144)),
        'anchor_backward, half, 128': ((32, 8, 2, 231, 120), (32, 8, 2, 253, 144), (16, 8, 2, 236, 200)),
        'anchor_backward, float, 64': ((16, 8, 1, 255, 80), (16, 8, 1, 255, 160), None),
        'anchor_output, half, 64': ((64, 4, 3, 63, 24), (64, 4, 2, 76, 40), (64, 8, 2, 82, 80)),
        'anchor_output, half, 128': ((64, 8, 2, 103, 28), (64, 4, 3, 115, 64), (64, 8, 2, 107, 112)),
        'anchor_output, float, 64': ((64, 8, 2, 146, 48), (32, 8, 2, 128, 88), (32, 8, 2, 222, 160)),
        'anchor_output_backward, half, 64': ((64, 4, 3, 77, 36), (64, 4, 3, 93, 64), (64, 8, 2, 98, 88)),
        'anchor_output_backward, half, 128': ((64, 8, 2, 113, 40), (64, 4, 3, 168, 80), (64, 8, 2, 179, 112)),
        'anchor_output_backward, float, 64': ((64, 8, 2, 160, 80), (32, 8, 2, 159, 80), (32, 8, 2, 249, 144)),
        'anchor_solver, half, 64': ((64, 4, 1, 179, 48), (64, 4, 1, 217, 64), (64, 8, 1, 255, 96)),
        'anchor_solver, half, 128': ((64, 8, 1, 255, 80), None, None),
        'anchor_solver, float, 64': ((64, 4, 1, 179, 48), (64, 4, 1, 217, 64), (64, 8, 1, 255, 96)),
        'anchor_solver_backward, half, 64': ((64, 4, 1, 194, 48), (64, 4, 1, 230, 64), (64, 8, 1, 255, 128)),
        'anchor_solver_backward, half, 128': ((64, 8, 1, 255, 128), None, None),
        'anchor_solver_backward, float, 64': ((64, 4, 1, 195, 48), (64, 4, 1, 255, 64), (64, 8, 1, 255, 128)),
        'anchor_state, half, 64': ((64, 4, 3, 137, 52), (64, 4, 3, 168, 96), (64, 8, 2, 177, 136)),
        'anchor_state, half, 128': ((64, 8, 2, 249, 64), (64, 8, 3, 255, 120), (64, 8, 2, 255, 176)),
        'anchor_state, float, 64': ((32, 8, 2, 253, 60), (32, 8, 2, 255, 104), (32, 8, 2, 255, 208)),
        'key_backward, half': ((64, 4, 3, 78, 28), (64, 4, 3, 164, 64), (64, 8, 2, 157, 128)),
        'key_backward, float': ((64, 8, 2, 135, 40), (64, 8, 2, 232, 112), (16, 8, 1, 80, 80)),
        'kv_state, half': ((64, 4, 3, 80, 12), (64, 4, 3, 96, 48), (64, 8, 2, 128, 64)),
        'kv_state, float': ((64, 8, 2, 167, 32), (64, 8, 2, 202, 64), (16, 8, 1, 255, 64)),
        'mala_key_backward, half': ((64, 4, 3, 127, 36), (64, 4, 3, 231, 80), (64, 8, 2, 228, 144)),
        'mala_key_backward, float': ((64, 8, 2, 152, 56), (64, 8, 2, 235, 144), (16, 8, 1, 110, 80)),
        'mala_kv_state, half': ((64, 4, 3, 124, 28), (64, 4, 3, 128, 56), (64, 8, 2, 173, 64)),
        'mala_kv_state, float': ((64, 8, 2, 206, 40), (64, 8, 2, 209, 80), None),
        'mala_query_backward, half': ((64, 4, 3, 202, 26), (128, 8, 2, 255, 72), (32, 8, 1, 234, 56)),
        'mala_query_backward, float': ((32, 8, 2, 255, 24), (16, 8, 2, 208, 48), (16, 8, 1, 255, 80)),
        'mala_query_output, half': ((64, 4, 3, 80, 22), (64, 4, 3, 140, 48), (64, 8, 2, 134, 80)),
        'mala_query_output, float': ((64, 8, 2, 88, 40), (64, 8, 2, 150, 96), (16, 8, 2, 64, 88)),
        'query_backward, half': ((64, 4, 3, 161, 22), (64, 4, 3, 241, 48), (32, 8, 2, 244, 56)),
        'query_backward, float': ((64, 8, 2, 254, 32), (32, 8, 2, 238, 56), (16, 8, 1, 255, 80)),
        'query_mean, half': ((128, 4, 1, 48, 4), (64, 4, 1, 40, 1), (128, 4, 1, 72, 2)),
        'query_mean, float': ((128, 4, 1, 54, 1), (128, 4, 1, 71, 1), (128, 4, 1, 88, 2)),
        'query_output, half': ((64, 4, 3, 64, 14), (64, 4, 3, 107, 32), (64, 8, 2, 154, 64)),
        'query_output, float': ((64, 8, 2, 93, 24), (64, 8, 2, 211, 64), (16, 8, 2, 64, 80)),
        'rala_key_backward, half': ((64, 4, 3, 160, 36), (64, 4, 2, 242, 56), (64, 8, 2, 250, 144)),
        'rala_key_backward, float': ((64, 8, 2, 212, 48), (64, 8, 2, 255, 144), (16, 8, 1, 128, 80)),
        'rala_kv_state, half': ((64, 4, 3, 112, 20), (32, 4, 3, 134, 32), (64, 8, 2, 251, 80)),
        'rala_kv_state, float': ((64, 8, 2, 184, 40), (32, 8, 2, 185, 40), None),
        'rala_query_backward, half': ((64, 4, 3, 96, 18), (64, 8, 3, 101, 40), (64, 8, 2, 146, 80)),
        'rala_query_backward, float': ((64, 8, 2, 106, 24), (64, 8, 2, 200, 56), (32, 8, 2, 255, 88)),
        'rala_query_output, half': ((64, 4, 3, 64, 22), (64, 4, 3, 117, 48), (64, 8, 2, 146, 80)),
        'rala_query_output, float': ((64, 8, 2, 94, 40), (64, 8, 2, 174, 96), (16, 8, 2, 64, 88)),
        'rala_query_sums, half': ((64, 4, 3, 130, 30), (64, 4, 3, 219, 72), (32, 8, 2, 232, 64)),
        'rala_query_sums, float': ((64, 8, 2, 252, 40), (32, 8, 2, 226, 64), (16, 8, 2, 32, 96)),
        'ripple, half': ((16, 4, 3, 90, 12), (16, 4, 3, 135, 28), (16, 8, 2, 149, 64)),
        'ripple, float': ((16, 8, 1, 124, 22), (16, 4, 1, 208, 40), None),
        'ripple_far_backward, half': ((64, 4, 3, 96, 17), (64, 4, 3, 137, 42), (64, 8, 2, 172, 64)),
        'ripple_far_backward, float': ((32, 8, 1, 128, 4), (64, 8, 2, 225, 65), (32, 8, 1, 233, 32)),
        'ripple_key_backward, half': ((16, 4, 1, 128, 12), (16, 4, 1, 164, 24), (16, 8, 1, 201, 68)),
        'ripple_key_backward, float': ((16, 8, 1, 157, 44), (16, 8, 1, 249, 80), None),
        'ripple_query_backward, half': ((16, 4, 3, 239, 16), (16, 4, 3, 249, 36), (16, 8, 1, 255, 64)),
        'ripple_query_backward, float': ((16, 8, 1, 250, 40), (16, 8, 1, 255, 76), None),
    },
}
# fmt: on
