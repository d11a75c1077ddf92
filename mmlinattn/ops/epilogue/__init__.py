"""What comes after the operator of an attention: the local position of the values, and the gate."""

from types import ModuleType
from typing import Optional, Sequence

from torch import Tensor

from ..common.checks import check_hw_shape
from ..common.dispatch import Operator
from .torch_impl import add_local, local_gate_portable

__all__ = ['add_local', 'local_gate']


def _kernels() -> ModuleType:
    from . import triton_ops as fused

    return fused


_local_gate = Operator('local_gate', local_gate_portable, local_gate_portable, _kernels)


def local_gate(
    out: Tensor,
    v: Tensor,
    gate: Optional[Tensor],
    weight: Tensor,
    bias: Optional[Tensor],
    *,
    hw_shape: Sequence[int],
    backend: str = 'auto',
) -> Tensor:
    """``(depthwise(v) + out) * gate``: the locally enhanced position encoding of "Breaking the
    Low-Rank Dilemma of Linear Attention" (Fan et al., CVPR 2025), and its output gate.

    On a GPU one kernel reads v in its place among the projections, ``out`` and the gate, and writes
    the result.

    Args:
        out: result of the attention, (B, N, C).
        v: values (B, N, C), of the type of ``out``, row-major over the map; any strides.
        gate: (B, N, C) of any floating type, or None for none.
        weight: of a depth-wise convolution that keeps the map's size, (C, 1, K, K), K odd.
        bias: (C,) or None.
        hw_shape: (H, W) with H * W == N.
        backend: ``'auto'``, ``'reference'``, ``'portable'`` (these two are one) or ``'fused'``.

    Returns:
        (B, N, C) in the type that ``out * gate`` has.

    Raises:
        ValueError: shapes or types that do not fit, an unknown backend.
        BackendError: a forced backend that cannot serve.

    Example:
        >>> import torch
        >>> out, v, gate = torch.randn(3, 2, 12, 8)
        >>> local_gate(out, v, gate, torch.randn(8, 1, 3, 3), None, hw_shape=(3, 4)).shape
        torch.Size([2, 12, 8])
    """
    if out.dim() != 3:
        raise ValueError(f'out must have shape (B, N, C), got {tuple(out.shape)}')
    for name, x in (('v', v), ('gate', gate)):
        if x is not None and x.shape != out.shape:
            raise ValueError(
                f'{name} must have the shape of out {tuple(out.shape)}, got {tuple(x.shape)}'
            )
    if v.dtype != out.dtype:
        raise ValueError(f'v must be {out.dtype} as out, got {v.dtype}')
    channels, size = out.shape[2], weight.shape[-1]
    if tuple(weight.shape) != (channels, 1, size, size) or size % 2 == 0:
        raise ValueError(
            f'weight must have shape (C, 1, K, K) with C = {channels} and K odd, got '
            f'{tuple(weight.shape)}'
        )
    hw_shape = check_hw_shape(out.shape[1], hw_shape, 'out')
    return _local_gate(backend, out, v, gate, weight, bias, hw_shape)
