"""Linear layers on the CPU by MKL or oneDNN, whichever is faster.

torch computes float32 products with MKL, which uses 256-bit code on processors of other makers than
Intel. oneDNN, torch's library for convolutions, uses 512-bit code on all of them: it is 2.3 times
as fast on an AMD EPYC with AVX-512 (docs/benchmarks.md, "Where the time goes").
"""

from pathlib import Path
from typing import Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Parameter

from .numerics import has_dispatch_mode, in_forward_ad, is_tracing, needs_gradient

CPU_INFO = Path('/proc/cpuinfo')
# Number of multiplications below which the call costs more than it saves.
LEAST = 2**22


def _onednn_is_faster() -> bool:
    """Return True for AVX-512 processors not made by Intel, if torch has both libraries."""
    return (
        torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, '_linear_pointwise')
        and torch.backends.mkl.is_available()
        and torch.backends.cpu.get_cpu_capability().startswith('AVX512')
        and CPU_INFO.exists()
        and 'GenuineIntel' not in CPU_INFO.read_text()
    )


# Computed once, at import.
ONEDNN_IS_FASTER = _onednn_is_faster()


def linear(x: Tensor, weight: Tensor, bias: Optional[Tensor] = None) -> Tensor:
    """Compute ``torch.nn.functional.linear`` with the faster library; supports all derivatives.

    ``torch.backends.mkldnn.flags(enabled=False)`` switches oneDNN off here as well.

    Args:
        x: (..., in).
        weight: (out, in).
        bias: (out,).

    Returns:
        (..., out) in the dtype of x. Under autocast, tracing or a dispatch mode, the result of
        torch's own function.

    Example:
        >>> x, weight = torch.randn(4, 500, 64), torch.randn(96, 64)
        >>> torch.testing.assert_close(linear(x, weight), x @ weight.T)
    """
    if not _serves(x, weight, bias):
        return F.linear(x, weight, bias)
    if needs_gradient(x, weight, bias):
        return _Linear.apply(x, weight, bias)
    return _product(x, weight, bias)


def multiply(x: Tensor, weight: Tensor) -> Tensor:
    """Multiply (B, heads, N, in) by (out, in) or (heads, out, in), into (B, heads, N, out)."""
    return linear(x, weight) if weight.dim() == 2 else x @ weight.transpose(-2, -1)


def _serves(x: Tensor, weight: Tensor, bias: Optional[Tensor]) -> bool:
    if is_tracing() or not ONEDNN_IS_FASTER:
        return False
    tensors = [t for t in (x, weight, bias) if t is not None]
    return (
        {t.dtype for t in tensors} == {torch.float32}
        and {type(t) for t in tensors} <= {Tensor, Parameter}  # subclasses define their own product
        and x.dim() > 1
        and x.device.type == weight.device.type == 'cpu'
        and x.numel() * weight.shape[0] >= LEAST
        and x.shape[-1] == weight.shape[-1]  # torch raises the clearer error
        and torch._C._get_mkldnn_enabled()
        and not torch.is_autocast_enabled('cpu')
        and not has_dispatch_mode()
        and not in_forward_ad()
    )


def _product(x: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, 'none', [None], '')


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tuple[Optional[Tensor], ...]:
        x, weight = ctx.saved_tensors
        dx = d_weight = d_bias = None
        if ctx.needs_input_grad[0]:
            dx = linear(grad, weight.t())
        rows, tokens = grad.flatten(0, -2), x.flatten(0, -2)
        if ctx.needs_input_grad[1]:
            # oneDNN copies the first factor: make it the narrower one. It reads a second factor
            # with wider strides hundreds of times more slowly: make it contiguous.
            narrow = rows.shape[1] <= tokens.shape[1]
            first, second = (rows, tokens) if narrow else (tokens, rows)
            d_weight = linear(first.t(), second.contiguous().t())
            d_weight = d_weight if narrow else d_weight.t()
        if ctx.needs_input_grad[2]:
            d_bias = rows.sum(0)
        return dx, d_weight, d_bias
