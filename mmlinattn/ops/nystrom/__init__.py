"""Nystrom attention."""

from types import ModuleType
from typing import Optional

from torch import Tensor

from ..common.checks import check_qkv
from ..common.dispatch import Operator
from ..anchors import check_anchors
from .options import NystromOptions
from .torch_impl import nystrom_portable
from .reference import nystrom_reference


def _kernels() -> ModuleType:
    from . import triton_ops as fused

    return fused


_nystrom = Operator('nystrom_attention', nystrom_reference, nystrom_portable, _kernels)


def nystrom_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    landmarks_q: Tensor,
    landmarks_k: Tensor,
    *,
    iterations: int = 6,
    key_padding_mask: Optional[Tensor] = None,
    backend: str = 'auto',
) -> Tensor:
    """Nystrom approximation of softmax attention by M landmarks, "Nyströmformer" (Xiong et al.,
    AAAI 2021), equation 13; O(N M d)::

        out = softmax(q k~^T) softmax(q~ k~^T)^+ softmax(q~ k^T) v,    all logits over sqrt(d)

    The pseudo-inverse is a third-order iteration, its start scaled for each head and image (the
    release takes one scale for the batch, in which an image then changes another). Padded tokens
    are left out of the softmax over the tokens; an image that is all padding yields 0.

    Args:
        q, k: projected tokens, (B, heads, N, d), any strides; float16, bfloat16, float32 or
            float64. Softmaxes, sums and M x M matrices are in float32 for half types (all but the
            reference form); products between landmarks are torch's own and follow
            ``torch.set_float32_matmul_precision`` on a GPU.
        v: values (B, heads, N, d_v) of the same type.
        landmarks_q, landmarks_k: q~ and k~, (heads, M, d) or (B, heads, M, d), of any floating
            type.
        iterations: of the pseudo-inverse.
        key_padding_mask: (B, N) bool, True = padding.
        backend: ``'auto'``, ``'reference'``, ``'portable'`` or ``'fused'``.

    Returns:
        (B, heads, N, d_v) in the type of ``q``.

    Raises:
        ValueError: fewer than one iteration, shapes, types or devices that do not fit, an unknown
            backend.
        TypeError: a padding mask that is not bool.
        BackendError: a forced backend that cannot serve.

    Example:
        >>> import torch
        >>> q, k, v = torch.randn(3, 2, 4, 30, 16)
        >>> landmarks_q, landmarks_k = torch.randn(2, 4, 8, 16)
        >>> nystrom_attention(q, k, v, landmarks_q, landmarks_k).shape
        torch.Size([2, 4, 30, 16])
    """
    check_qkv(q, k, v, key_padding_mask)
    check_anchors(q, landmarks_q=landmarks_q, landmarks_k=landmarks_k)
    check_iterations(iterations)
    options = NystromOptions(iterations, key_padding_mask)
    return _nystrom(backend, q, k, v, landmarks_q, landmarks_k, options)


def check_iterations(iterations: int) -> None:
    """Raises ValueError unless it is a positive integer."""
    if type(iterations) is not int or iterations < 1:
        raise ValueError(f'iterations must be a positive integer, got {iterations!r}')
