"""The learnt feature map of ripple attention."""

from types import ModuleType
from typing import Tuple

from torch import Tensor

from ..common.dispatch import Operator
from .torch_impl import adaptive_portable, waves

__all__ = ['adaptive_features', 'waves']


def _kernels() -> ModuleType:
    from . import triton_ops as fused

    return fused


# The definition is as fast as torch alone can be.
_adaptive = Operator('adaptive_features', adaptive_portable, adaptive_portable, _kernels)


def adaptive_features(
    q: Tensor,
    k: Tensor,
    frequencies: Tensor,
    weight: Tensor,
    bias: Tensor,
    *,
    backend: str = 'auto',
) -> Tuple[Tensor, Tensor]:
    """Learnt features of queries and keys, "Ripple Attention for Visual Perception with
    Sub-quadratic Complexity" (Zheng et al., ICML 2022), appendix::

        phi(x) = ReLU(W2 [sin(W1 x); cos(W1 x)] + b2)

    Half types: ``W1 x``, sines and cosines are as exact as in float32 (in kernels for float16, W1
    has 22 of its 24 bits); the kernels multiply W2 by numbers rounded to the type of q, as a linear
    layer does, with sums in float32.

    Args:
        q, k: (B, heads, N, d), any strides; float16, bfloat16, float32 or float64.
        frequencies: W1, (m, d), or (heads, m, d) for a map of its own for each head; this and the
            next two of any floating type.
        weight: W2, (m, 2 m) or (heads, m, 2 m).
        bias: b2, (m,) or (heads, m).
        backend: ``'auto'``, ``'reference'``, ``'portable'`` (these two are one) or ``'fused'``.

    Returns:
        Features of q and of k, (B, heads, N, m), in the type of q.

    Raises:
        ValueError: shapes, types or devices that do not fit, an unknown backend.
        BackendError: a forced backend that cannot serve.

    Example:
        >>> import torch
        >>> q, k = torch.randn(2, 2, 4, 30, 16)
        >>> w1, w2, b2 = torch.randn(8, 16), torch.randn(8, 16), torch.randn(8)
        >>> adaptive_features(q, k, w1, w2, b2)[0].shape
        torch.Size([2, 4, 30, 8])
    """
    if q.dim() != 4:
        raise ValueError(f'q must have shape (B, heads, N, d), got {tuple(q.shape)}')
    if k.shape != q.shape or k.dtype != q.dtype:
        raise ValueError(
            f'k must be as q, {q.dtype} {tuple(q.shape)}, got {k.dtype} {tuple(k.shape)}'
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
            raise ValueError(
                f'{name} must be floats on {q.device}, got {tensor.dtype} on {tensor.device}'
            )
    return _adaptive(backend, q, k, frequencies, weight, bias)
