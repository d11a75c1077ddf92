"""Definition of additive attention."""

from torch import Tensor

from ..common.numerics import Mask, masked_softmax


def additive_reference(
    q: Tensor, k: Tensor, v: Tensor, w_q: Tensor, w_k: Tensor, q_mask: Mask, k_mask: Mask
) -> Tensor:
    """Compute :func:`mmlinattn.ops.additive_attention` as its definition reads."""

    def pool(tokens: Tensor, weight: Tensor, mask: Mask) -> Tensor:
        mask = None if mask is None else mask[:, None]  # [B, 1, N]
        scores = (tokens * weight.to(tokens.dtype)[:, None]).sum(-1) * tokens.shape[-1] ** -0.5
        return (masked_softmax(scores, mask)[..., None] * tokens).sum(2, keepdim=True)

    p = pool(q, w_q, q_mask) * k  # [B, H, N, d]
    return pool(p, w_k, k_mask) * v
