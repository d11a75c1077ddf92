"""Learnt feature map of ripple attention."""

from typing import Optional, Tuple

import torch
from torch import Tensor

from ..common.dispatch import choose_backend
from ..common.launch_table import unsupported_tokens
from ..common.numerics import accumulation_dtype, multiply, no_autocast

__all__ = ['adaptive_features', 'sines_and_cosines']

KERNELS = ('adaptive', 'adaptive_backward')
# Beyond, the parameters alone would fill the registers.
MAX_DIM = 64


def adaptive_features(
    q: Tensor, k: Tensor, frequencies: Tensor, weight: Tensor, bias: Tensor, *,
    backend: str = 'auto',
) -> Tuple[Tensor, Tensor]:  # fmt: skip
    """Compute learnt features of queries and keys, "Ripple Attention for Visual Perception with
    Sub-quadratic Complexity" (Zheng et al., ICML 2022), appendix::

        phi(x) = ReLU(W2 [sin(W1 x); cos(W1 x)] + b2)

    For half types ``W1 x``, sines and cosines have float32 precision. The kernels round the factors
    of the product with W2 to the dtype of q, as a linear layer does, and sum in float32.

    Args:
        q, k: (B, heads, N, d), any strides; float16, bfloat16, float32 or float64. The numbers of
            tokens may differ.
        frequencies, weight, bias: W1 (m, d), W2 (m, 2 m) and b2 (m,), any floating dtype; with a
            first axis of heads for one map per head.
        backend: ``'auto'``, ``'reference'``, ``'torch'`` (the same code) or ``'triton'``.

    Returns:
        features of q and of k, (B, heads, N, m) each, in the dtype of q.

    Raises:
        ValueError: shapes, dtypes or devices do not match, unknown backend.
        BackendError: the requested backend cannot serve the call.

    Example:
        >>> import torch
        >>> q, k = torch.randn(2, 2, 4, 30, 16)
        >>> w1, w2, b2 = torch.randn(8, 16), torch.randn(8, 16), torch.randn(8)
        >>> adaptive_features(q, k, w1, w2, b2)[0].shape
        torch.Size([2, 4, 30, 8])
    """
    if q.dim() != 4:
        raise ValueError(f'q must have shape (B, heads, N, d), got {tuple(q.shape)}')
    same = k.dim() == 4 and (*k.shape[:2], k.shape[3]) == (*q.shape[:2], q.shape[3])
    if not same or k.dtype != q.dtype:
        raise ValueError(
            f'k must have the dtype of q and its shape except for the number of tokens, {q.dtype} '
            f'{tuple(q.shape)}, got {k.dtype} {tuple(k.shape)}'
        )
    heads, dim, count = q.shape[1], q.shape[3], frequencies.shape[-2:-1]
    lead = (heads,) if frequencies.dim() == 3 else ()
    shapes = dict(frequencies=(*count, dim), weight=(*count, *(2 * m for m in count)), bias=count)
    given = dict(frequencies=frequencies, weight=weight, bias=bias)
    for name, shape in shapes.items():
        if tuple(given[name].shape) != (*lead, *shape):
            raise ValueError(
                f'{name} must have shape {(*lead, *shape)} beside q {tuple(q.shape)} and '
                f'frequencies {tuple(frequencies.shape)}, got {tuple(given[name].shape)}'
            )
    for name, tensor in dict(k=k, **given).items():
        if tensor.device != q.device or not tensor.is_floating_point():
            found = f'{tensor.dtype} on {tensor.device}'
            raise ValueError(f'{name} must be floats on {q.device}, got {found}')

    tensors = q, k, frequencies, weight, bias
    chosen = choose_backend('adaptive_features', backend, q, _unsupported_reason, *tensors)
    if chosen == 'triton':
        from .triton_kernels import OPERATOR  # imports Triton

        return OPERATOR((), q, k, *[x.contiguous() for x in tensors[2:]])
    return _adaptive_torch(*tensors)  # the definition is the fastest form in torch


def _unsupported_reason(
    q: Tensor, k: Tensor, frequencies: Tensor, weight: Tensor, bias: Tensor
) -> Optional[str]:
    """Return why the kernels cannot serve the call, or None if they can."""
    count, dim = frequencies.shape[-2:]
    if k.shape != q.shape:
        return 'different numbers of queries and keys have no kernel'
    if count != dim:
        return f'kernels need as many features as channels ({dim}), got {count}'
    if dim > MAX_DIM:
        return f'kernels support at most {MAX_DIM} channels per head, got {dim}'
    if torch.float64 in (frequencies.dtype, weight.dtype, bias.dtype):
        return 'kernels compute in float32, got float64 parameters'
    return unsupported_tokens(q, dim, KERNELS)


def _adaptive_torch(
    q: Tensor, k: Tensor, frequencies: Tensor, weight: Tensor, bias: Tensor
) -> Tuple[Tensor, Tensor]:
    """Compute the features, those of half types in float32."""
    out_dtype, dtype = q.dtype, accumulation_dtype(q.dtype)
    if not frequencies.dtype == weight.dtype == bias.dtype == dtype:
        frequencies, weight, bias = frequencies.to(dtype), weight.to(dtype), bias.to(dtype)
    if out_dtype != dtype:
        q, k = q.to(dtype), k.to(dtype)
    bias = bias if bias.ndim == 1 else bias[:, None]
    with no_autocast(q):
        q = torch.relu(multiply(sines_and_cosines(q, frequencies), weight) + bias)
        k = torch.relu(multiply(sines_and_cosines(k, frequencies), weight) + bias)
    return (q, k) if out_dtype == dtype else (q.to(out_dtype), k.to(out_dtype))


def sines_and_cosines(x: Tensor, frequencies: Tensor) -> Tensor:
    """Return ``[sin(W1 x); cos(W1 x)]``, (B, heads, N, 2 m); both arguments have one dtype."""
    phase = multiply(x, frequencies)
    return torch.cat([phase.sin(), phase.cos()], -1)
