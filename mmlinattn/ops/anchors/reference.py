"""The random walk by its definition: the N x N transition. Slow, short, exact in float64."""

import torch
from torch import Tensor

from ..common.numerics import masked_softmax
from .options import WalkOptions


def random_walk_reference(
    q: Tensor, k: Tensor, v: Tensor, anchors_q: Tensor, anchors_k: Tensor, options: WalkOptions
) -> Tensor:
    """See :func:`mmlinattn.ops.random_walk_attention`."""
    decay, steps, mask = options.decay, options.steps, options.key_padding_mask
    mask = None if mask is None else mask[:, None, None]  # [B, 1, 1, N]
    anchors_q, anchors_k = anchors_q.to(q.dtype), anchors_k.to(q.dtype)
    g_q = (q @ anchors_k.transpose(-2, -1)).softmax(-1)  # [B, H, N, M]
    g_k = masked_softmax(anchors_q @ k.transpose(-2, -1), mask)  # [B, H, M, N]
    transition = g_q @ g_k  # [B, H, N, N]
    if steps is None:
        identity = torch.eye(q.shape[2], dtype=q.dtype, device=q.device)
        return (1 - decay) * torch.linalg.solve(identity - decay * transition, transition @ v)
    out, walk = torch.zeros_like(v), v
    for i in range(steps):
        walk = transition @ walk
        out = out + decay**i * walk
    return (1 - decay) / (1 - decay**steps) * out
