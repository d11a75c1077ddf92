"""Nystrom attention in chunks of tokens: the sums and the readout are those of the random walk,
whose anchors are the landmarks; what happens between the landmarks is M x M."""

from torch import Tensor

from ..common.numerics import accumulation_dtype, no_autocast
from ..anchors.torch_impl import gather, read
from .inverse import iterative_inverse
from .options import NystromOptions


def nystrom_portable(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    landmarks_q: Tensor,
    landmarks_k: Tensor,
    options: NystromOptions,
) -> Tensor:
    """See :func:`mmlinattn.ops.nystrom_attention`."""
    dtype, scale = accumulation_dtype(q.dtype), q.shape[-1] ** -0.5
    with no_autocast(q):
        landmarks_q, landmarks_k = landmarks_q.to(dtype), scale * landmarks_k.to(dtype)
        between = (landmarks_q @ landmarks_k.transpose(-2, -1)).softmax(-1)  # [B, H, M, M]
        state = gather(k, v, scale * landmarks_q, options.key_padding_mask)  # [B, H, M, d_v]
        return read(q, landmarks_k, iterative_inverse(between, options.iterations) @ state)
