"""Linear attention in O(N d^2): one pass over keys and values, one over queries."""

from typing import Optional

from torch import Tensor

from ..numerics import accumulation_dtype, no_autocast


def linear_portable(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_padding_mask: Optional[Tensor] = None,
    eps: float = 1e-6,
) -> Tensor:
    """See :func:`mmlinattn.ops.linear_attention`."""
    out_dtype = v.dtype
    dtype = accumulation_dtype(out_dtype)
    # Autocast would push the sums and the normaliser back into half precision.
    with no_autocast(q):
        q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
        if key_padding_mask is not None:
            k = k.masked_fill(key_padding_mask[:, None, :, None], 0)
        state = k.transpose(-2, -1) @ v  # [B, H, m, d]
        total = k.sum(-2)[..., None]  # [B, H, m, 1]
        return (q @ state / (q @ total + eps)).to(out_dtype)
