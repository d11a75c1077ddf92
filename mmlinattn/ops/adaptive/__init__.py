"""Learnt feature map of ripple attention."""

from functools import partial
from typing import Optional, Tuple

from torch import Tensor

from ..common.dispatch import choose_backend
from ..common.kernel_check import Trial
from ..common.kernel_fallback import run_kernels
from ..common.numerics import needs_gradient
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
        q, k: (B, heads, N, d), any strides; float16, bfloat16, float32 or float64. The numbers of
            tokens may differ.
        frequencies: W1, (m, d), or (heads, m, d) for one map per head. This and the next two have
            any floating dtype.
        weight: W2, (m, 2 m) or (heads, m, 2 m).
        bias: b2, (m,) or (heads, m).
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
            raise ValueError(
                f'{name} must be floats on {q.device}, got {tensor.dtype} on {tensor.device}'
            )

    def unsupported_reason() -> Optional[str]:
        from .triton_ops import unsupported_reason

        if k.shape != q.shape:
            return 'different numbers of queries and keys have no kernel'
        return unsupported_reason(q, k, frequencies, weight, bias)

    tensors = q, k, frequencies, weight, bias
    trial = partial(_trial, *tensors)
    chosen = choose_backend('adaptive_features', backend, q, unsupported_reason, trial=trial)
    if chosen != 'triton':  # the definition is the fastest form in torch
        return adaptive_torch(*tensors)
    from .triton_ops import adaptive_triton

    return run_kernels('adaptive_features', backend, adaptive_triton, adaptive_torch, *tensors)


def _trial(q: Tensor, k: Tensor, *parameters: Tensor) -> Trial:
    """Return small calls that launch the same kernels."""
    dim, lead = q.shape[-1], parameters[0].dim() - 2
    by_parameter = [(2,) * lead + tuple(p.shape[lead:]) for p in parameters]

    def run(backend: str, hw_shape: Tuple[int, int], mask: Optional[Tensor], *small: Tensor):
        from .triton_ops import adaptive_triton

        frequencies, weight, bias = small[2:]
        # Near the edge of a ReLU rounding decides if there is a gradient.
        learnt = frequencies, weight * 0.5 * dim**-0.5, bias * 0.1 + 3
        form = adaptive_triton if backend == 'triton' else adaptive_torch
        return form(small[0], small[1], *learnt)

    return Trial(
        variant=f'head dim {dim}' + ', by head' * lead,
        dtype=q.dtype,
        masked=False,
        training=needs_gradient(q, k, *parameters),
        shapes=lambda batch, n: [(batch, 2, n, dim)] * 2 + by_parameter,
        run=run,
    )
