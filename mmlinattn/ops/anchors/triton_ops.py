"""The random walk with both softmaxes inside the products: nothing N x M is written.

One custom operator, and one for its gradients: torch.compile and autograd see them.
"""

from typing import Optional, Tuple

import torch
from torch import Tensor

from ..common.numerics import needs_gradient, token_major
from ..common.triton_helpers import MAX_DIM, padded
from ..common.triton_helpers import refuses as refuses_tokens
from .triton_kernels import FORWARD, KERNELS, backward, forward
from .options import WalkOptions


def fused(
    q: Tensor, k: Tensor, v: Tensor, anchors_q: Tensor, anchors_k: Tensor, options: WalkOptions
) -> Tensor:
    """See :func:`mmlinattn.ops.random_walk_attention`; products round anchors to the type of q,
    and a walk of any length is a series for either solver."""
    anchors = anchors_q.contiguous(), anchors_k.contiguous()
    mask, decay, steps = options.key_padding_mask, options.decay, options.steps
    return _forward(q, k, v, *anchors, mask, None, decay, steps)[0]


def through(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    anchors_q: Tensor,
    anchors_k: Tensor,
    middle: Tensor,
    mask: Optional[Tensor],
) -> Tensor:
    """``G_Q middle G_K v`` for another matrix between the anchors, float32 (B, heads, M, M), or
    (heads, M, M) for all images."""
    anchors = anchors_q.contiguous(), anchors_k.contiguous()
    middle = middle.expand(*q.shape[:2], -1, -1).contiguous()
    return _forward(q, k, v, *anchors, mask, middle, 0.5, 1)[0]


def refuses(
    q: Tensor, k: Tensor, v: Tensor, anchors_q: Tensor, anchors_k: Tensor, *_
) -> Optional[str]:
    """Why the kernel cannot serve, or None."""
    num_anchors = anchors_q.shape[-2]
    if num_anchors > MAX_DIM:
        return f'kernels are for at most {MAX_DIM} anchors, got {num_anchors}'
    kernels = KERNELS if needs_gradient(q, k, v, anchors_q, anchors_k) else FORWARD
    return refuses_tokens(q, v, kernels, num_anchors)


@torch.library.custom_op('mmlinattn::random_walk', mutates_args=())
def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    anchors_q: Tensor,
    anchors_k: Tensor,
    mask: Optional[Tensor],
    middle: Optional[Tensor],
    decay: float,
    steps: Optional[int],
) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
    with torch.cuda.device_of(q):
        return forward(q, k, v, anchors_q, anchors_k, mask, middle, decay, steps)


@_forward.register_fake
def _(q, k, v, anchors_q, anchors_k, mask, middle, decay, steps):
    batch, heads, _, dim = q.shape
    bd, bm = padded(dim), padded(anchors_q.shape[-2])
    has_walk = middle is None and steps != 1
    sums = q.new_empty((batch, heads, bm, bd + has_walk * bm), dtype=torch.float32)
    x = sums.new_empty((batch, heads, bm, bd) if has_walk or middle is not None else 0)
    return token_major(q), sums, sums.new_empty((batch, heads, bm)), x


@torch.library.custom_op('mmlinattn::random_walk_backward', mutates_args=())
def _backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    anchors_q: Tensor,
    anchors_k: Tensor,
    mask: Optional[Tensor],
    middle: Optional[Tensor],
    sums: Tensor,
    lse: Tensor,
    x: Tensor,
    decay: float,
    steps: Optional[int],
) -> Tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    tensors = (grad, q, k, v, anchors_q, anchors_k, mask, middle, sums, lse, x)
    with torch.cuda.device_of(q):
        return backward(*tensors, decay, steps)


@_backward.register_fake
def _(grad, q, k, v, anchors_q, anchors_k, mask, middle, *_):
    contiguous = torch.contiguous_format
    return (
        *(token_major(t) for t in (q, k, v)),
        *(torch.empty_like(a, memory_format=contiguous) for a in (anchors_q, anchors_k)),
        q.new_empty(0, dtype=torch.float32) if middle is None else torch.empty_like(middle),
    )


def _setup_context(ctx, inputs, output) -> None:
    ctx.set_materialize_grads(False)  # no zeros for the outputs that only the backward pass reads
    *tensors, decay, steps = inputs
    ctx.options = decay, steps
    ctx.save_for_backward(*tensors, *output[1:])


def _autograd(ctx, grad, *_):
    *grads, d_middle = _backward(grad, *ctx.saved_tensors, *ctx.options)
    return (*grads, None, d_middle if d_middle.numel() else None, None, None)


_forward.register_autograd(_autograd, setup_context=_setup_context)
