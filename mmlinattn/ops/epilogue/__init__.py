"""Epilogue of an attention: local position encoding of the values, and output gate."""

from functools import partial
from typing import List, Optional, Sequence, Tuple

from torch import Tensor

from ..common.checks import check_hw_shape
from ..common.dispatch import choose_backend
from ..common.kernel_check import Trial
from ..common.kernel_fallback import run_kernels
from ..common.numerics import needs_gradient
from .torch_impl import add_local, local_gate_torch

__all__ = ['add_local', 'local_gate']


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
    """Compute ``(depthwise(v) + out) * gate``: the locally enhanced position encoding of "Breaking
    the Low-Rank Dilemma of Linear Attention" (Fan et al., CVPR 2025), and its output gate.

    On a GPU one kernel reads v (a view of the projections), ``out`` and the gate.

    Args:
        out: result of the attention, (B, N, C).
        v: values (B, N, C), the dtype of ``out``, row-major over the map; any strides.
        gate: (B, N, C), any floating dtype, or None.
        weight: of the depth-wise convolution with stride 1 and padding K // 2, (C, 1, K, K), K odd.
        bias: (C,) or None.
        hw_shape: (H, W) with H * W == N.
        backend: ``'auto'``, ``'reference'``, ``'torch'`` (the same code) or ``'triton'``.

    Returns:
        (B, N, C) in the dtype of ``out * gate``.

    Raises:
        ValueError: shapes or dtypes do not match, unknown backend.
        BackendError: the requested backend cannot serve the call.

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

    def unsupported_reason() -> Optional[str]:
        from .triton_ops import unsupported_reason

        return unsupported_reason(out, gate, weight, bias)

    tensors = out, v, gate, weight, bias
    trial = partial(_trial, *tensors)
    chosen = choose_backend('local_gate', backend, out, unsupported_reason, trial=trial)
    torch_form = partial(local_gate_torch, hw_shape=hw_shape)
    if chosen != 'triton':
        return torch_form(*tensors)
    from .triton_ops import local_gate_triton

    kernels = partial(local_gate_triton, hw_shape=hw_shape)
    return run_kernels('local_gate', backend, kernels, torch_form, *tensors)


def _trial(
    out: Tensor, v: Tensor, gate: Optional[Tensor], weight: Tensor, bias: Optional[Tensor]
) -> Trial:
    """Return small calls that launch the same kernels."""
    channels, size = out.shape[2], weight.shape[-1]
    gated, biased = gate is not None, bias is not None

    def run(backend: str, hw_shape: Tuple[int, int], mask: Optional[Tensor], *small: Tensor):
        from .triton_ops import local_gate_triton

        rest = list(small[2:])
        gate = rest.pop(0) if gated else None
        weight, bias = rest[0], rest[1] if biased else None
        form = local_gate_triton if backend == 'triton' else local_gate_torch
        return form(small[0], small[1], gate, weight, bias, hw_shape)

    def shapes(batch: int, num_tokens: int) -> List[Tuple[int, ...]]:
        tokens = [(batch, num_tokens, channels)] * (2 + gated)
        return [*tokens, (channels, 1, size, size), *[(channels,)] * biased]

    return Trial(
        variant=f'{channels} channels, {size}x{size}' + ', gate' * gated + ', bias' * biased,
        dtype=out.dtype,
        masked=False,
        training=needs_gradient(out, v, gate, weight, bias),
        shapes=shapes,
        run=run,
        same_bits=False,  # the weight's gradient is of torch's convolution
    )
