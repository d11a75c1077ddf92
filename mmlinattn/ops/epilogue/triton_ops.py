"""Custom operators of local position encoding and gate, for torch.compile and autograd."""

from functools import partial
from typing import Optional, Tuple

import torch
from torch import Tensor

from ..common.kernel_fallback import current_fallback, gradients
from ..common.numerics import needs_gradient
from ..common.triton_helpers import DTYPES, custom_operator
from . import triton_kernels as kernels

# Kernel size of the convolution. Beyond it a tile's border costs more reads than the tile.
MAX_SIZE = 7


def local_gate_triton(
    out: Tensor,
    v: Tensor,
    gate: Optional[Tensor],
    weight: Tensor,
    bias: Optional[Tensor],
    hw_shape: Tuple[int, int],
) -> Tensor:
    """Compute :func:`mmlinattn.ops.local_gate`."""
    keep = gate is not None and needs_gradient(out, v, gate, weight, bias)
    return _forward(out, v, gate, weight, bias, *hw_shape, keep)[0]


def unsupported_reason(
    out: Tensor, gate: Optional[Tensor], weight: Tensor, bias: Optional[Tensor]
) -> Optional[str]:
    """Return why the kernels cannot serve the call, or None if they can."""
    for x in (out, gate, weight, bias):
        if x is not None and x.dtype not in DTYPES:
            return f'kernels support float16, bfloat16 and float32, got {x.dtype}'
    if weight.shape[-1] > MAX_SIZE:
        return f'kernels support convolutions up to {MAX_SIZE}x{MAX_SIZE}, got {weight.shape[-1]}'
    if out.numel() == 0:
        return f'kernels need tokens, got {tuple(out.shape)}'
    if out.is_cuda and torch.cuda.get_device_properties(out.device).major < 8:
        return 'kernels need compute capability 8.0'
    return None


_forward = custom_operator('local_gate', kernels.forward)


@_forward.register_fake
def _(out, v, gate, weight, bias, height, width, keep):
    return kernels.new_results(out, gate, keep)


_gate_backward = custom_operator('gate_backward', kernels.gate_backward)


@_gate_backward.register_fake
def _(grad, gate, kept):
    return torch.empty_like(kept), torch.empty_like(kept, dtype=gate.dtype)


def _setup_context(ctx, inputs, output) -> None:
    ctx.set_materialize_grads(False)
    out, v, gate, weight, bias, *ctx.hw_shape, _ = inputs
    ctx.dtype = out.dtype
    ctx.fallback = current_fallback()
    ctx.bias = None if bias is None else bias.dtype
    ctx.save_for_backward(v, gate, weight, output[1])


def _autograd(ctx, grad, _):
    v, gate, weight, kept = ctx.saved_tensors
    d_sum, d_gate = grad, None
    if gate is not None:
        # The product's gradients.
        fallback = ctx.fallback and ctx.fallback._replace(torch_form=torch.mul)
        kernels = partial(_gate_backward, grad, gate, kept)
        d_sum, d_gate = gradients(fallback, kernels, [kept, gate], grad)
    d_sum = d_sum.to(ctx.dtype)  # type: ignore[union-attr]  # kept needs a gradient
    maps, d_maps = (x.unflatten(1, ctx.hw_shape).permute(0, 3, 1, 2) for x in (v, d_sum))
    around = [weight.shape[-1] // 2] * 2
    dv, d_weight, d_bias = torch.ops.aten.convolution_backward(
        d_maps, maps, weight.to(v.dtype), [v.shape[2]], [1, 1], around, [1, 1], False, [0, 0],
        v.shape[2], [True, True, ctx.bias is not None],
    )  # fmt: skip
    dv = dv.permute(0, 2, 3, 1).flatten(1, 2)
    d_bias = None if d_bias is None else d_bias.to(ctx.bias)
    return d_sum, dv, d_gate, d_weight.to(weight.dtype), d_bias, None, None, None


_forward.register_autograd(_autograd, setup_context=_setup_context)
