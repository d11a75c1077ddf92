"""The random walk with both softmaxes inside the products: nothing N x M is written."""

from typing import Optional

from torch import Tensor

from ..kernels.common import MAX_DIM, padded
from ..kernels.common import refuses as refuses_tokens
from ..kernels.random_walk import SHARED_KIB
from ..kernels.random_walk_op import walk_readout, walk_state
from ..numerics import no_autocast
from .portable import walk_on


def fused(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    anchors_q: Tensor,
    anchors_k: Tensor,
    decay: float = 0.1,
    steps: Optional[int] = None,
    key_padding_mask: Optional[Tensor] = None,
    solver: str = 'series',
) -> Tensor:
    """See :func:`mmlinattn.ops.random_walk_attention`; anchors are rounded to the type of q."""
    anchors_q, anchors_k = (a.to(q.dtype).contiguous() for a in (anchors_q, anchors_k))
    with no_autocast(q):
        state, walk, _ = walk_state(q, k, v, anchors_q, anchors_k, key_padding_mask, steps != 1)
        return walk_readout(q, anchors_k, walk_on(state, walk, decay, steps, solver))


def refuses(q: Tensor, k: Tensor, v: Tensor, anchors_q: Tensor, *_) -> Optional[str]:
    """Why the kernel cannot serve, or None."""
    num_anchors = anchors_q.shape[-2]
    if num_anchors > MAX_DIM:
        return f'kernels are for at most {MAX_DIM} anchors, got {num_anchors}'
    return refuses_tokens(q, q.shape[-1], SHARED_KIB[int(padded(num_anchors) > 64)])
