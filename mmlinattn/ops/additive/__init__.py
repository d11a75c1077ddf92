"""Additive attention."""

from typing import Optional

from torch import Tensor

from ..common.checks import check_qkv
from ..common.dispatch import Operator
from .options import AdditiveOptions
from .torch_impl import additive_portable
from .reference import additive_reference

_additive = Operator('additive_attention', additive_reference, additive_portable)


def additive_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    w_q: Tensor,
    w_k: Tensor,
    *,
    key_padding_mask: Optional[Tensor] = None,
    backend: str = 'auto',
) -> Tensor:
    """Additive attention, "Fast Vision Transformer via Additive Attention" after Fastformer::

        query = sum_i softmax_i(w_q . q_i / sqrt(d)) q_i
        key = sum_i softmax_i(w_k . p_i / sqrt(d)) p_i,    p_i = query * k_i
        out_i = key * v_i

    O(N d). Padded tokens are left out of both softmaxes; an image that is all padding yields 0.

    Args:
        q, k, v: projected tokens, (B, heads, N, d), any strides; float16, bfloat16, float32 or
            float64. Half types are accumulated in float32 (all but the reference form). Values
            cannot have another width here: the key multiplies them channel by channel.
        w_q, w_k: what tokens are scored with, (heads, d), of any floating type.
        key_padding_mask: (B, N) bool, True = padding.
        backend: ``'auto'``, ``'reference'``, ``'portable'`` or ``'fused'``.

    Returns:
        (B, heads, N, d) in the type of ``q``; without the paper's last projection and residual.

    Raises:
        ValueError: shapes, types or devices that do not fit, an unknown backend.
        TypeError: a padding mask that is not bool.
        BackendError: a forced backend that cannot serve.

    Example:
        >>> import torch
        >>> q, k, v = torch.randn(3, 2, 4, 30, 16)
        >>> w_q, w_k = torch.randn(2, 4, 16)
        >>> additive_attention(q, k, v, w_q, w_k).shape
        torch.Size([2, 4, 30, 16])
    """
    check_qkv(q, k, v, key_padding_mask)
    if v.shape[3] != q.shape[3]:
        raise ValueError(f'v must be as wide as q, {q.shape[3]}: key * v_i, got {tuple(v.shape)}')
    shape = (q.shape[1], q.shape[3])
    for name, weight in (('w_q', w_q), ('w_k', w_k)):
        if tuple(weight.shape) != shape or weight.device != q.device:
            raise ValueError(
                f'{name} must have shape (heads, d) = {shape} on {q.device}, got '
                f'{tuple(weight.shape)} on {weight.device}'
            )
    return _additive(backend, q, k, v, w_q, w_k, AdditiveOptions(key_padding_mask))
