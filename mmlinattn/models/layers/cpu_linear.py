"""Models on the CPU: oneDNN for linear layers, channels_last for segmentation heads."""

from pathlib import Path
from typing import Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn import Parameter

from ...ops.common.numerics import has_dispatch_mode, in_forward_ad, is_tracing, needs_gradient

CPU_INFO = Path('/proc/cpuinfo')
# Number of multiplications below which the call costs more than it saves.
LEAST = 2**22
# Heads of convolutions and resizing alone: these are faster with maps in channels_last.
CONV_HEADS = ('AllMLPHead', 'FPNHead', 'LevelwiseSegformerHead', 'SegformerHead', 'UPerHead')


def optimize_for_cpu(model: nn.Module, enabled: bool = True) -> nn.Module:
    """Make a model faster on the CPU, in place; results differ by rounding only.

    - Each ``nn.Linear`` becomes a :class:`CPULinear`, where torch's BLAS, MKL, keeps to 256-bit
      code: on processors with AVX-512 of another maker than Intel. Subclasses of ``nn.Linear`` are
      left as they are. On other processors no layer changes.
    - Neck and decode head of a segmentor get convolutions in channels_last, if the head is one of
      ``CONV_HEADS``: resizing maps takes a tenth of the time.

    Parameters keep names, values and gradients. Under autocast, tracing, on other devices and in
    ``torch.backends.mkldnn.flags(enabled=False)`` the layers compute what ``nn.Linear`` does. A
    model on another device is left as it is. The commands of this package call this function.
    Measured in docs/benchmarks.md.

    Args:
        model: any model, of this package or another.
        enabled: False to undo, for tools that look for the exact class ``nn.Linear``, such as
            dynamic quantisation.

    Returns:
        The same model. ``print(model)`` shows the changed layers.

    Raises:
        TypeError: ``model`` is no ``nn.Module``.

    Example:
        >>> model = nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 64)).eval()
        >>> x = torch.randn(2, 100, 64)
        >>> expected = model(x)
        >>> torch.testing.assert_close(optimize_for_cpu(model)(x), expected)
        >>> type(optimize_for_cpu(model, enabled=False)[0]).__name__
        'Linear'
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f'model must be an nn.Module, got {type(model).__name__}')
    if enabled and any(parameter.device.type != 'cpu' for parameter in model.parameters()):
        return model
    old, new = (nn.Linear, CPULinear) if enabled else (CPULinear, nn.Linear)
    if not enabled or onednn_is_faster():
        for module in model.modules():
            if type(module) is old:
                module.__class__ = new
    head = getattr(model, 'decode_head', None)
    if type(head).__name__ in CONV_HEADS:
        layout = torch.channels_last if enabled else torch.contiguous_format
        for part in (head, getattr(model, 'neck', None)):
            if part is not None:
                part.to(memory_format=layout)
    return model


def onednn_is_faster() -> bool:
    """Return True for AVX-512 processors not made by Intel, if torch has both libraries."""
    return (
        torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, '_linear_pointwise')
        and torch.backends.mkl.is_available()
        and torch.backends.cpu.get_cpu_capability().startswith('AVX512')
        and CPU_INFO.exists()
        and 'GenuineIntel' not in CPU_INFO.read_text()
    )


class CPULinear(nn.Linear):
    """Linear layer by oneDNN; made of ``nn.Linear`` by :func:`optimize_for_cpu`."""

    def forward(self, x: Tensor) -> Tensor:
        return onednn_linear(x, self.weight, self.bias)


def onednn_linear(x: Tensor, weight: Tensor, bias: Optional[Tensor] = None) -> Tensor:
    """Compute ``torch.nn.functional.linear`` by oneDNN where it serves, else by torch's function.

    Small products, other dtypes and devices, autocast, traces and dispatch modes get the latter.
    """
    if not _serves(x, weight, bias):
        return F.linear(x, weight, bias)
    if needs_gradient(x, weight, bias):
        # The product of oneDNN is a view if x has more dimensions, and a view that a Function
        # returns cannot be modified in place, as by nn.ReLU(inplace=True).
        return _Linear.apply(x.flatten(0, -2), weight, bias).unflatten(0, x.shape[:-1])
    return _product(x, weight, bias)


def _serves(x: Tensor, weight: Tensor, bias: Optional[Tensor]) -> bool:
    if is_tracing():
        return False
    tensors = [t for t in (x, weight, bias) if t is not None]
    return (
        {t.dtype for t in tensors} == {torch.float32}
        and {type(t) for t in tensors} <= {Tensor, Parameter}  # subclasses define their own product
        and x.dim() > 1
        and x.device.type == weight.device.type == 'cpu'
        and x.numel() * weight.shape[0] >= LEAST
        and x.shape[-1] == weight.shape[-1]  # torch raises the clearer error
        and bool(torch.backends.mkldnn.enabled)
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
            dx = onednn_linear(grad, weight.t())
        if ctx.needs_input_grad[1]:
            # oneDNN copies the first factor: make it the narrower one. It reads a second factor
            # with wider strides hundreds of times more slowly: make it contiguous.
            narrow = grad.shape[1] <= x.shape[1]
            first, second = (grad, x) if narrow else (x, grad)
            d_weight = onednn_linear(first.t(), second.contiguous().t())
            d_weight = d_weight if narrow else d_weight.t()
        if ctx.needs_input_grad[2]:
            d_bias = grad.sum(0)
        return dx, d_weight, d_bias
