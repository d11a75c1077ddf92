"""Nystrom attention by the kernels of the random walk, whose anchors are the landmarks: nothing
N x M is written."""

from typing import Optional

from torch import Tensor

from ..common.numerics import no_autocast
from ..anchors import triton_ops as walk
from .inverse import iterative_inverse
from .options import NystromOptions


def fused(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    landmarks_q: Tensor,
    landmarks_k: Tensor,
    options: NystromOptions,
) -> Tensor:
    """See :func:`mmlinattn.ops.nystrom_attention`; landmarks are rounded to the type of q."""
    with no_autocast(q):
        scale = q.shape[-1] ** -0.5
        # What the inverse is of must be what the kernels see.
        anchors_q = (scale * landmarks_q).to(q.dtype).contiguous()
        anchors_k = (scale * landmarks_k).to(q.dtype).contiguous()
        logits = anchors_q.float() @ anchors_k.float().transpose(-2, -1) / scale
        inverse = iterative_inverse(logits.softmax(-1), options.iterations)
        return walk.through(q, k, v, anchors_q, anchors_k, inverse, options.key_padding_mask)


def refuses(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    landmarks_q: Tensor,
    landmarks_k: Tensor,
    options: NystromOptions,
) -> Optional[str]:
    """Why the kernels cannot serve, or None."""
    return walk.refuses(q, k, v, landmarks_q, landmarks_k)
