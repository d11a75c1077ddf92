"""Linear attention without a normaliser."""

from typing import Optional

from torch import Tensor

from ..common.checks import check_qkv
from ..common.numerics import accumulation_dtype, no_autocast


def unnormalised_attention(
    q: Tensor, k: Tensor, v: Tensor, *, key_padding_mask: Optional[Tensor] = None
) -> Tensor:
    """``out_i = q_i^T (sum_j k_j v_j^T)`` by associativity, for features of any sign; O(N m d_v).

    Two matrix products; half types are summed in float32. Padded keys are left out of the sum.

    Args:
        q, k: features (B, heads, N, m), any strides.
        v: values (B, heads, N, d_v) of the same type.
        key_padding_mask: (B, N) bool, True = padding.

    Returns:
        (B, heads, N, d_v) in at least float32: the sum of many tokens may be too large for float16.

    Raises:
        ValueError: shapes, types or devices that do not fit.
        TypeError: a padding mask that is not bool.

    Example:
        >>> import torch
        >>> q, k, v = torch.randn(3, 2, 4, 30, 16)
        >>> unnormalised_attention(q, k, v).shape
        torch.Size([2, 4, 30, 16])
    """
    check_qkv(q, k, v, key_padding_mask)
    dtype = accumulation_dtype(q.dtype)
    with no_autocast(q):
        k = k.to(dtype)
        if key_padding_mask is not None:
            k = k.masked_fill(key_padding_mask[:, None, :, None], 0)
        return q.to(dtype) @ (k.transpose(-2, -1) @ v.to(dtype))
