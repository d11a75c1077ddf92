"""Definitions of the operators with anchors: short, slow, exact in float64."""

import torch
from torch import Tensor

from ..common.numerics import Mask, masked_softmax
from .anchor_solver import Walk, iterative_pinv


def random_walk_reference(
    q: Tensor, k: Tensor, v: Tensor, anchors_q: Tensor, anchors_k: Tensor, options: Walk,
    mask: Mask, cross: bool,
) -> Tensor:  # fmt: skip
    """Compute :func:`mmlinattn.ops.random_walk_attention` by its N x N transition."""
    decay, steps = options
    mask = None if mask is None else mask[:, None, None]  # [B, 1, 1, N]
    anchors_q, anchors_k = anchors_q.to(q.dtype), anchors_k.to(q.dtype)
    g_q = (q @ anchors_k.transpose(-2, -1)).softmax(-1)  # [B, H, N, M]
    g_k = masked_softmax(anchors_q @ k.transpose(-2, -1), mask)  # [B, H, M, N]
    first = transition = g_q @ g_k  # [B, H, N, N]
    if cross:
        transition = (k @ anchors_k.transpose(-2, -1)).softmax(-1) @ g_k  # between the keys
    if steps is None:
        identity = torch.eye(k.shape[2], dtype=q.dtype, device=q.device)
        return (1 - decay) * first @ torch.linalg.solve(identity - decay * transition, v)
    out, walk = torch.zeros_like(v), v
    for i in range(steps):
        out = out + decay**i * walk
        walk = transition @ walk
    return (1 - decay) / (1 - decay**steps) * first @ out


def nystrom_reference(
    q: Tensor, k: Tensor, v: Tensor, anchors_q: Tensor, anchors_k: Tensor, steps: int, mask: Mask
) -> Tensor:
    """Compute :func:`mmlinattn.ops.nystrom_attention` by its three softmaxes."""
    scale = q.shape[-1] ** -0.5
    mask = None if mask is None else mask[:, None, None]  # [B, 1, 1, N]
    anchors_q, anchors_k = scale * anchors_q.to(q.dtype), anchors_k.to(q.dtype)
    to_anchors = (scale * q @ anchors_k.transpose(-2, -1)).softmax(-1)  # [B, H, N, M]
    landmarks = (anchors_q @ anchors_k.transpose(-2, -1)).softmax(-1)  # [B, H, M, M]
    from_tokens = masked_softmax(anchors_q @ k.transpose(-2, -1), mask)  # [B, H, M, N]
    return to_anchors @ iterative_pinv(landmarks, steps) @ from_tokens @ v
