"""Additive attention."""

from typing import Optional

from torch import Tensor

from ..common.checks import check_qkv
from ..common.dispatch import choose_backend
from .reference import additive_reference
from .torch_impl import additive_torch


def additive_attention(
    q: Tensor, k: Tensor, v: Tensor, w_q: Tensor, w_k: Tensor, *,
    key_padding_mask: Optional[Tensor] = None, cross: bool = False, backend: str = 'auto',
) -> Tensor:  # fmt: skip
    """Compute additive attention of "Fast Vision Transformer via Additive Attention"::

        query = sum_i softmax_i(w_q . q_i / sqrt(d)) q_i
        key = sum_i softmax_i(w_k . p_i / sqrt(d)) p_i,    p_i = query * k_i
        out_i = key * v_i

    O(N d). With ``cross`` the keys are other tokens; values are those of the queries. Padded
    tokens are excluded from both softmaxes; an image of padding only yields 0.

    Args:
        q, k, v: projected tokens, (B, heads, N, d), any strides; float16, bfloat16, float32 or
            float64. Half types are accumulated in float32, except in the reference implementation.
            Values have the width of the keys, which multiply them channel by channel.
        w_q, w_k: vectors that score the tokens, (heads, d), any floating dtype.
        key_padding_mask: (B, N) bool, True = padding.
        cross: keys are other tokens than queries and values, (B, heads, M, d); the mask (B, M) is
            theirs.
        backend: ``'auto'``, ``'reference'`` or ``'torch'``; it has no kernels.

    Returns:
        (B, heads, N, d) in the dtype of ``q``, before the paper's last projection and residual.

    Raises:
        ValueError: shapes, dtypes or devices do not match, unknown backend.
        TypeError: the padding mask is not bool.
        BackendError: the requested backend cannot serve the call.

    Example:
        >>> import torch
        >>> q, k, v = torch.randn(3, 2, 4, 30, 16)
        >>> w_q, w_k = torch.randn(2, 4, 16)
        >>> additive_attention(q, k, v, w_q, w_k).shape
        torch.Size([2, 4, 30, 16])
    """
    check_qkv(q, k, k if cross else v, key_padding_mask, cross)
    if cross:
        check_qkv(q, q, v, None)
    if v.shape[3] != q.shape[3]:
        raise ValueError(f'v must have {q.shape[3]} channels per head as q, got {tuple(v.shape)}')
    shape = (q.shape[1], q.shape[3])
    for name, weight in (('w_q', w_q), ('w_k', w_k)):
        if tuple(weight.shape) != shape or weight.device != q.device:
            found = f'{tuple(weight.shape)} on {weight.device}'
            raise ValueError(
                f'{name} must have shape (heads, d) = {shape} on {q.device}, got {found}'
            )
    masks = None if cross else key_padding_mask, key_padding_mask
    if choose_backend('additive_attention', backend, q) == 'reference':
        return additive_reference(q, k, v, w_q, w_k, *masks)
    return additive_torch(q, k, v, w_q, w_k, *masks)
