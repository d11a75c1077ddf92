"""The kernels as custom operators: torch.compile and autograd see them."""

from typing import Optional, Tuple

import torch
from torch import Tensor

from ..common.numerics import token_major
from ..common.triton_helpers import refuses as refuses_tokens
from . import triton_kernels as kernels


def fused(
    q: Tensor, k: Tensor, frequencies: Tensor, weight: Tensor, bias: Tensor
) -> Tuple[Tensor, Tensor]:
    """See :func:`mmlinattn.ops.adaptive_features`."""
    return _forward(q, k, frequencies, weight, bias)


def refuses(
    q: Tensor, k: Tensor, frequencies: Tensor, weight: Tensor, bias: Tensor
) -> Optional[str]:
    """Why the kernels cannot serve, or None."""
    count, dim = frequencies.shape[-2:]
    if count != dim:
        return f'kernels are for as many features as channels, got {count} of {dim}'
    if dim > kernels.MAX_DIM:
        return f'kernels are for at most {kernels.MAX_DIM} channels a head, got {dim}'
    if torch.float64 in (frequencies.dtype, weight.dtype, bias.dtype):
        return 'kernels compute in float32, got float64 parameters'
    return refuses_tokens(q, k, kernels.KERNELS)


@torch.library.custom_op('mmlinattn::adaptive_features', mutates_args=())
def _forward(
    q: Tensor, k: Tensor, frequencies: Tensor, weight: Tensor, bias: Tensor
) -> Tuple[Tensor, Tensor]:
    with torch.cuda.device_of(q):
        return kernels.forward(q, k, frequencies, weight, bias)


@_forward.register_fake
def _(q, k, frequencies, weight, bias):
    return token_major(q), token_major(k)


@torch.library.custom_op('mmlinattn::adaptive_features_backward', mutates_args=())
def _backward(
    grad_q: Tensor,
    grad_k: Tensor,
    q: Tensor,
    k: Tensor,
    features_q: Tensor,
    features_k: Tensor,
    frequencies: Tensor,
    weight: Tensor,
    bias: Tensor,
) -> Tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    with torch.cuda.device_of(q):
        return kernels.backward(
            grad_q, grad_k, q, k, features_q, features_k, frequencies, weight, bias
        )


@_backward.register_fake
def _(grad_q, grad_k, q, k, features_q, features_k, frequencies, weight, bias):
    parameters = (t.new_empty(t.shape) for t in (frequencies, weight, bias))
    return (token_major(q), token_major(k), *parameters)


def _setup_context(ctx, inputs, output) -> None:
    q, k, *parameters = inputs
    ctx.save_for_backward(q, k, *output, *parameters)


def _autograd(ctx, grad_q, grad_k):
    return _backward(grad_q, grad_k, *ctx.saved_tensors)


_forward.register_autograd(_autograd, setup_context=_setup_context)
