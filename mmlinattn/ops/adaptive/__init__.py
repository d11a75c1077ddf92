"""Learnt feature map of ripple attention."""

from typing import Optional, Tuple

from torch import Tensor

from ..common.dispatch import choose_backend
from .torch_impl import adaptive_torch, sines_and_cosines

__all__ = ['adaptive_features', 'sines_and_cosines']


def adaptive_features(
    q: Tensor,
    k: Tensor,
    frequencies: Tensor,
    weight: Tensor,
    bias: Tensor,
    *,
    backend: str = 'auto',
) -> Tuple[Tensor, Tensor]:
    """Compute learnt features of queries and keys, "Ripple Attention for Visual Perception with
    Sub-quadratic Complexity" (Zheng et al., ICML 2022), appendix::

        phi(x) = ReLU(W2 [sin(W1 x); cos(W1 x)] + b2)

    For half types ``W1 x``, sines and cosines have float32 precision (float16 kernels keep 22 of
    the 24 bits of W1). The kernels round the factors of the product with W2 to the dtype of q, as a
    linear layer does, and sum in float32.

    Args:
        q, k: (B, heads, N, d), any strides; float16, bfloat16, float32 or float64.
        frequencies: W1, (m, d), or (heads, m, d) for one map per head. This and the next two have
            any floating dtype.
        weight: W2, (m, 2 m) or (heads, m, 2 m).
        bias: b2, (m,) or (heads, m).
        backend: ``'auto'``, ``'reference'``, ``'torch'`` (the same code) or ``'triton'``.

    Returns:
        features of q and of k, (B, heads, N, m), in the dtype of q.

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
    if k.shape != q.shape or k.dtype != q.dtype:
        raise ValueError(
            f'k must have the dtype and shape of q, {q.dtype} {tuple(q.shape)}, got {k.dtype} '
            f'{tuple(k.shape)}'
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

    def unsupported_reason() -> Optional[str]:
        from .triton_ops import unsupported_reason

        return unsupported_reason(q, k, frequencies, weight, bias)

    backend = choose_backend('adaptive_features', backend, q, unsupported_reason)
    if backend != 'triton':  # the definition is the fastest form in torch
        return adaptive_torch(q, k, frequencies, weight, bias)
    from .triton_ops import adaptive_triton

    return adaptive_triton(q, k, frequencies, weight, bias)
