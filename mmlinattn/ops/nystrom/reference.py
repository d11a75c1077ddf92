"""Nystrom attention by its definition: three softmaxes, all N x M of them in memory."""

from torch import Tensor

from ..common.numerics import masked_softmax
from .inverse import iterative_inverse
from .options import NystromOptions


def nystrom_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    landmarks_q: Tensor,
    landmarks_k: Tensor,
    options: NystromOptions,
) -> Tensor:
    """See :func:`mmlinattn.ops.nystrom_attention`."""
    mask, scale = options.key_padding_mask, q.shape[-1] ** -0.5
    mask = None if mask is None else mask[:, None, None]  # [B, 1, 1, N]
    landmarks_q, landmarks_k = landmarks_q.to(q.dtype), landmarks_k.to(q.dtype)
    read = (scale * q @ landmarks_k.transpose(-2, -1)).softmax(-1)  # [B, H, N, M]
    between = (scale * landmarks_q @ landmarks_k.transpose(-2, -1)).softmax(-1)  # [B, H, M, M]
    gathered = masked_softmax(scale * landmarks_q @ k.transpose(-2, -1), mask)  # [B, H, M, N]
    return read @ iterative_inverse(between, options.iterations) @ gathered @ v
