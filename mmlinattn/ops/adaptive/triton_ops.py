"""Custom operators of the learnt feature map, for torch.compile and autograd."""

from functools import partial
from typing import Optional

import torch
from torch import Tensor

from ..common.kernel_fallback import current_fallback, gradients
from ..common.numerics import token_major
from ..common.triton_helpers import custom_operator, unsupported_tokens
from . import triton_kernels as kernels


def unsupported_reason(
    q: Tensor, k: Tensor, frequencies: Tensor, weight: Tensor, bias: Tensor
) -> Optional[str]:
    """Return why the kernels cannot serve the call, or None if they can."""
    count, dim = frequencies.shape[-2:]
    if count != dim:
        return f'kernels need as many features as channels ({dim}), got {count}'
    if dim > kernels.MAX_DIM:
        return f'kernels support at most {kernels.MAX_DIM} channels per head, got {dim}'
    if torch.float64 in (frequencies.dtype, weight.dtype, bias.dtype):
        return 'kernels compute in float32, got float64 parameters'
    return unsupported_tokens(q, k, kernels.KERNELS)


# Computes :func:`mmlinattn.ops.adaptive_features`.
adaptive_triton = custom_operator('adaptive_features', kernels.forward)


@adaptive_triton.register_fake
def _(q, k, frequencies, weight, bias):
    return token_major(q), token_major(k)


_backward = custom_operator('adaptive_features_backward', kernels.backward)


@_backward.register_fake
def _(grad_q, grad_k, q, k, features_q, features_k, frequencies, weight, bias):
    parameters = (t.new_empty(t.shape) for t in (frequencies, weight, bias))
    return (token_major(q), token_major(k), *parameters)


def _setup_context(ctx, inputs, output) -> None:
    q, k, *parameters = inputs
    ctx.save_for_backward(q, k, *output, *parameters)
    ctx.fallback = current_fallback()


def _autograd(ctx, grad_q, grad_k):
    q, k, _, _, *parameters = ctx.saved_tensors
    kernels = partial(_backward, grad_q, grad_k, *ctx.saved_tensors)
    return gradients(ctx.fallback, kernels, [q, k, *parameters], grad_q, grad_k)


adaptive_triton.register_autograd(_autograd, setup_context=_setup_context)
