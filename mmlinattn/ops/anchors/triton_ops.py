"""Custom operators of attention through anchors; no N x M matrix is written.

One operator and one for its gradients, for torch.compile and autograd.
"""

from typing import Optional

import torch
from torch import Tensor

from ..common.kernel_fallback import current_fallback, gradients
from ..common.numerics import needs_gradient, no_autocast, token_major
from ..common.triton_helpers import MAX_DIM, custom_operator, padded, unsupported_tokens
from .anchor_solver import iterative_pinv
from .options import NystromOptions, WalkOptions
from .triton_kernels import FORWARD, KERNELS, backward, forward


def random_walk_triton(
    q: Tensor, k: Tensor, v: Tensor, anchors_q: Tensor, anchors_k: Tensor, options: WalkOptions
) -> Tensor:
    """Compute :func:`mmlinattn.ops.random_walk_attention`.

    Anchors are rounded to the dtype of q. Either solver computes the series.
    """
    anchors = anchors_q.contiguous(), anchors_k.contiguous()
    mask, decay, steps = options.key_padding_mask, options.decay, options.steps
    return _forward(q, k, v, *anchors, mask, None, decay, steps)[0]


def nystrom_triton(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    landmarks_q: Tensor,
    landmarks_k: Tensor,
    options: NystromOptions,
) -> Tensor:
    """Compute :func:`mmlinattn.ops.nystrom_attention`; landmarks are rounded to the dtype of q."""
    with no_autocast(q):
        scale = q.shape[-1] ** -0.5
        # Invert the matrix of the rounded landmarks, which the kernels use.
        anchors_q = (scale * landmarks_q).to(q.dtype).contiguous()
        anchors_k = (scale * landmarks_k).to(q.dtype).contiguous()
        logits = anchors_q.float() @ anchors_k.float().transpose(-2, -1) / scale
        matrix = iterative_pinv(logits.softmax(-1), options.iterations)
        return attend_by_matrix(q, k, v, anchors_q, anchors_k, matrix, options.key_padding_mask)


def attend_by_matrix(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    anchors_q: Tensor,
    anchors_k: Tensor,
    anchor_matrix: Tensor,
    mask: Optional[Tensor],
) -> Tensor:
    """Compute ``G_Q anchor_matrix G_K v`` for any float32 matrix between the anchors.

    Args:
        anchor_matrix: (B, heads, M, M), or (heads, M, M) shared by all images.
    """
    anchors = anchors_q.contiguous(), anchors_k.contiguous()
    anchor_matrix = anchor_matrix.expand(*q.shape[:2], -1, -1).contiguous()
    return _forward(q, k, v, *anchors, mask, anchor_matrix, 0.5, 1)[0]


def unsupported_reason(
    q: Tensor, k: Tensor, v: Tensor, anchors_q: Tensor, anchors_k: Tensor
) -> Optional[str]:
    """Return why the kernels cannot serve the call, or None if they can."""
    num_anchors = anchors_q.shape[-2]
    if num_anchors > MAX_DIM:
        return f'kernels support at most {MAX_DIM} anchors, got {num_anchors}'
    kernels = KERNELS if needs_gradient(q, k, v, anchors_q, anchors_k) else FORWARD
    return unsupported_tokens(q, v, kernels, num_anchors)


_forward = custom_operator('random_walk', forward)


@_forward.register_fake
def _(q, k, v, anchors_q, anchors_k, mask, anchor_matrix, decay, steps):
    batch, heads, _, dim = q.shape
    bd, bm = padded(dim), padded(anchors_q.shape[-2])
    has_transition = anchor_matrix is None and steps != 1
    sums = q.new_empty((batch, heads, bm, bd + has_transition * bm), dtype=torch.float32)
    x = sums.new_empty((batch, heads, bm, bd) if has_transition or anchor_matrix is not None else 0)
    return token_major(q), sums, sums.new_empty((batch, heads, bm)), x


_backward = custom_operator('random_walk_backward', backward)


@_backward.register_fake
def _(grad, q, k, v, anchors_q, anchors_k, mask, anchor_matrix, *_):
    contiguous = torch.contiguous_format
    return (
        *(token_major(t) for t in (q, k, v)),
        *(torch.empty_like(a, memory_format=contiguous) for a in (anchors_q, anchors_k)),
        q.new_empty(0, dtype=torch.float32)
        if anchor_matrix is None
        else torch.empty_like(anchor_matrix),
    )


def _setup_context(ctx, inputs, output) -> None:
    ctx.set_materialize_grads(False)  # no zeros for what only the backward pass needs
    *tensors, decay, steps = inputs
    ctx.options = decay, steps
    ctx.fallback = current_fallback()
    ctx.save_for_backward(*tensors, *output[1:])


def _autograd(ctx, grad, *_):
    *tensors, _, anchor_matrix = ctx.saved_tensors[:7]
    tensors = tensors if anchor_matrix is None else [*tensors, anchor_matrix]
    grads = gradients(
        ctx.fallback,
        lambda: _backward(grad, *ctx.saved_tensors, *ctx.options)[: len(tensors)],
        tensors,
        grad,
    )
    return (*grads[:5], None, grads[5] if len(grads) > 5 else None, None, None)


_forward.register_autograd(_autograd, setup_context=_setup_context)
