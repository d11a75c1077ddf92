"""The random walk with both softmaxes inside the products: nothing N x M is written.

The kernels as custom operators: torch.compile and autograd see them.
"""

from typing import Optional, Tuple

import torch
from torch import Tensor

from ..common.numerics import no_autocast, token_major
from ..common.triton import MAX_DIM, padded
from ..common.triton import refuses as refuses_tokens
from .kernels import SHARED_KIB, make_state, read_out, readout_backward, state_backward
from .options import WalkOptions
from .walk import walk_on


def fused(
    q: Tensor, k: Tensor, v: Tensor, anchors_q: Tensor, anchors_k: Tensor, options: WalkOptions
) -> Tensor:
    """See :func:`mmlinattn.ops.random_walk_attention`; anchors are rounded to the type of q."""
    anchors_q, anchors_k = (a.to(q.dtype).contiguous() for a in (anchors_q, anchors_k))
    mask, has_walk = options.key_padding_mask, options.steps != 1
    with no_autocast(q):
        state, walk, _ = walk_state(q, k, v, anchors_q, anchors_k, mask, has_walk)
        return walk_readout(q, anchors_k, walk_on(state, walk, options))


def refuses(q: Tensor, k: Tensor, v: Tensor, anchors_q: Tensor, *_) -> Optional[str]:
    """Why the kernel cannot serve, or None."""
    num_anchors = anchors_q.shape[-2]
    if num_anchors > MAX_DIM:
        return f'kernels are for at most {MAX_DIM} anchors, got {num_anchors}'
    return refuses_tokens(q, v, SHARED_KIB[int(padded(num_anchors) > 64)])


@torch.library.custom_op('mmlinattn::walk_state', mutates_args=())
def walk_state(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    anchors_q: Tensor,
    anchors_k: Tensor,
    mask: Optional[Tensor],
    has_walk: bool,
) -> Tuple[Tensor, Tensor, Tensor]:
    """``G_K v``, ``G_K G_Q`` (empty unless ``has_walk``) and the log of the softmaxes' sums."""
    with torch.cuda.device_of(q):
        return make_state(q, k, v, anchors_q, anchors_k, mask, has_walk)


@walk_state.register_fake
def _(q, k, v, anchors_q, anchors_k, mask, has_walk):
    batch, heads, _, dim = q.shape
    num_anchors = anchors_q.shape[-2]
    s = q.new_empty((batch, heads, num_anchors, dim), dtype=torch.float32)
    w = s.new_empty((batch, heads, num_anchors, num_anchors)) if has_walk else s.new_empty(0)
    return s, w, s.new_empty((batch, heads, num_anchors))


@torch.library.custom_op('mmlinattn::walk_state_backward', mutates_args=())
def _state_backward(
    ds: Tensor,
    dw: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    anchors_q: Tensor,
    anchors_k: Tensor,
    mask: Optional[Tensor],
    s: Tensor,
    w: Tensor,
    lse: Tensor,
    has_walk: bool,
) -> Tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    with torch.cuda.device_of(q):
        grads = state_backward(ds, dw, q, k, v, anchors_q, anchors_k, mask, s, w, lse, has_walk)
    dq, dk, dv, daq, dak = grads
    return dq, dk, dv, _of_anchors(daq, anchors_q), _of_anchors(dak, anchors_k)


def _of_anchors(grad: Tensor, anchors: Tensor) -> Tensor:
    """The gradient of all images, for anchors that these share; a new contiguous tensor."""
    grad = grad.sum(0) if anchors.dim() == 3 else grad.contiguous()
    return grad.to(anchors.dtype)


@_state_backward.register_fake
def _(ds, dw, q, k, v, anchors_q, anchors_k, *_):
    return (
        *(token_major(x) for x in (q, k, v)),
        *(
            torch.empty_like(x, memory_format=torch.contiguous_format)
            for x in (anchors_q, anchors_k)
        ),
    )


def _state_context(ctx, inputs, output) -> None:
    *tensors, ctx.has_walk = inputs
    ctx.save_for_backward(*tensors, *output)


def _state_autograd(ctx, ds, dw, _):
    grads = _state_backward(ds, dw, *ctx.saved_tensors, ctx.has_walk)
    return (*grads, None, None)


walk_state.register_autograd(_state_autograd, setup_context=_state_context)


@torch.library.custom_op('mmlinattn::walk_readout', mutates_args=())
def walk_readout(q: Tensor, anchors_k: Tensor, x: Tensor) -> Tensor:
    """``softmax(q anchors_k^T) x``."""
    with torch.cuda.device_of(q):
        return read_out(q, anchors_k, x.contiguous())


@walk_readout.register_fake
def _(q, anchors_k, x):
    return token_major(q)


@torch.library.custom_op('mmlinattn::walk_readout_backward', mutates_args=())
def _readout_backward(
    grad: Tensor, q: Tensor, anchors_k: Tensor, x: Tensor
) -> Tuple[Tensor, Tensor, Tensor]:
    with torch.cuda.device_of(q):
        dq, d_anchors, dx = readout_backward(grad, q, anchors_k, x.contiguous())
    return dq, _of_anchors(d_anchors, anchors_k), dx.contiguous()


@_readout_backward.register_fake
def _(grad, q, anchors_k, x):
    return (
        token_major(q),
        torch.empty_like(anchors_k, memory_format=torch.contiguous_format),
        torch.empty_like(x, memory_format=torch.contiguous_format),
    )


def _readout_context(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs)


def _readout_autograd(ctx, grad):
    return _readout_backward(grad, *ctx.saved_tensors)


walk_readout.register_autograd(_readout_autograd, setup_context=_readout_context)
