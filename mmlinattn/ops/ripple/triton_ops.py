"""Custom operators of ripple attention, for torch.compile and autograd.

The kernels keep scores and spatial weights of a tile in registers.
"""

from typing import Optional

import torch
from torch import Tensor

from ..common.kernel_fallback import current_fallback, gradients
from ..common.numerics import token_major
from ..common.triton_helpers import custom_operator, padded, unsupported_tokens
from . import triton_kernels as kernels
from .options import RippleOptions

# Reach of the halo of a tile; beyond it summed-area tables cost less.
MAX_DISTANCE = 16


def ripple_triton(
    q: Tensor, k: Tensor, v: Tensor, weights: Tensor, options: RippleOptions
) -> Tensor:
    """Compute :func:`mmlinattn.ops.ripple_attention`."""
    return _forward(
        q, k, v, weights, *options.hw_shape, options.key_padding_mask, options.eps, options.stick
    )[0]


def unsupported_reason(
    q: Tensor, v: Tensor, weights: Tensor, options: RippleOptions
) -> Optional[str]:
    """Return why the kernels cannot serve the call, or None if they can."""
    max_distance = weights.shape[-1] - (options.stick is None)
    if kernels.PROBLEM is not None:
        return kernels.PROBLEM
    if options.groups != 'chebyshev':
        return f'groups={options.groups!r} have no kernel'
    if not 1 <= max_distance <= MAX_DISTANCE:
        return f'kernels support R from 1 to {MAX_DISTANCE}, got {max_distance}'
    return unsupported_tokens(q, v, kernels.KERNELS)


_forward = custom_operator('ripple', kernels.forward)


@_forward.register_fake
def _(q, k, v, weights, height, width, mask, eps, stick):
    batch, heads, num_tokens, dim = q.shape
    size = padded(dim)
    norm = q.new_empty((batch, heads, num_tokens), dtype=torch.float32)
    sums, count = norm.new_empty((batch, heads, size + 1, size)), norm.new_empty((batch, heads))
    box = q.new_empty(0 if mask is None else (batch, kernels.BOXES, 4), dtype=torch.int32)
    return token_major(q), norm, sums, count, box


_backward = custom_operator('ripple_backward', kernels.backward)


@_backward.register_fake
def _(grad, q, k, v, weights, *_):
    d_weights = torch.empty_like(weights, memory_format=torch.contiguous_format)
    return token_major(q), token_major(k), token_major(v), d_weights


def _setup_context(ctx, inputs, output) -> None:
    ctx.set_materialize_grads(False)  # no zeros for what only the backward pass needs
    q, k, v, weights, *ctx.hw_shape, mask, ctx.eps, ctx.stick = inputs
    ctx.save_for_backward(q, k, v, weights, mask, *output[1:])
    ctx.fallback = current_fallback()


def _autograd(ctx, grad, *_):
    grads = gradients(
        ctx.fallback,
        lambda: _backward(grad, *ctx.saved_tensors, *ctx.hw_shape, ctx.eps, ctx.stick),
        ctx.saved_tensors[:4],
        grad,
    )
    return (*grads, None, None, None, None, None)


_forward.register_autograd(_autograd, setup_context=_setup_context)
