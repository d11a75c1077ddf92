"""Additive attention in matrix products: ``w_k . (query * k_i) = (w_k * query) . k_i``."""

from typing import Optional

from torch import Tensor

from ..numerics import accumulation_dtype, masked_softmax, no_autocast


def additive_portable(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    w_q: Tensor,
    w_k: Tensor,
    key_padding_mask: Optional[Tensor] = None,
) -> Tensor:
    """See :func:`mmlinattn.ops.additive_attention`."""
    out_dtype, scale = q.dtype, q.shape[-1] ** -0.5
    dtype = accumulation_dtype(out_dtype)
    mask = None if key_padding_mask is None else key_padding_mask[:, None, None]  # [B, 1, 1, N]

    def pool(tokens: Tensor, weight: Tensor) -> Tensor:
        scores = (scale * weight)[..., None, :] @ tokens.transpose(-2, -1)  # [B, H, 1, N]
        return masked_softmax(scores, mask) @ tokens  # [B, H, 1, d]

    with no_autocast(q):
        w_q, w_k = w_q.to(dtype), w_k.to(dtype)
        query = pool(q.to(dtype), w_q)
        key = query * pool(k.to(dtype), w_k * query.squeeze(2))
        return (key * v.to(dtype)).to(out_dtype)
