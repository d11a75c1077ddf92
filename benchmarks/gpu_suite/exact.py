"""Operators in float64, with time and memory linear in the tokens; padding has weight 0.

The definitions (``backend='reference'``) are N x N, too large for the sizes of a GPU. These are
written from the formulas, with gradients by autograd, and share no code with the package. Tensors
are (B, heads, N, d); ``keep`` (B, 1, N, 1) is 0 for padding and 1 for a real token.
"""

from typing import Sequence, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..baselines.textbook import rotary_tables, rotate


def linear(q: Tensor, k: Tensor, v: Tensor, keep: Tensor, eps: float = 1e-6) -> Tensor:
    """Compute linear attention of features."""
    k = k * keep
    return q @ (k.mT @ v) / (q @ k.sum(2)[..., None] + eps)


def learnt(
    q: Tensor, k: Tensor, frequencies: Tensor, weight: Tensor, bias: Tensor
) -> Tuple[Tensor, Tensor]:
    """Compute adaptive features of queries and keys, with one feature map per head."""
    phases = (x @ frequencies.mT for x in (q, k))
    waves = (torch.cat([phase.sin(), phase.cos()], -1) for phase in phases)
    q, k = (F.relu(wave @ weight.mT + bias[:, None]) for wave in waves)
    return q, k


def local_gate(
    q: Tensor, k: Tensor, v: Tensor, weight: Tensor, keep: Tensor, hw_shape: Sequence[int]
) -> Tensor:
    """Compute ``(conv(v) + q) * k`` with a depth-wise convolution; weight (heads, d, 25)."""
    batch, heads, _, dim = v.shape
    maps = (v * keep).mT.reshape(batch, heads * dim, *hw_shape)
    kernel = weight.reshape(heads * dim, 1, 5, 5)
    local = F.conv2d(maps, kernel, padding=2, groups=heads * dim)
    return (local.reshape(batch, heads, dim, -1).mT + q) * k


def rala(
    q: Tensor, k: Tensor, v: Tensor, keep: Tensor, hw_shape: Sequence[int], eps: float = 1e-6
) -> Tensor:
    """Compute RALA with rotary position."""
    tables = rotary_tables(hw_shape, q.shape[-1], q.dtype, q.device)
    q, k = F.elu(q) + 1, F.elu(k) + 1
    count = keep.sum(2, keepdim=True).clamp(min=1)
    mean = (q * keep).sum(2, keepdim=True) / count  # [B, H, 1, d]
    # The shares are a_j / N: they sum to 1 because the weights a_j have mean 1.
    k = k * _shares(k @ mean.mT * q.shape[-1] ** -0.5, keep)
    norm = q @ k.sum(2)[..., None] + eps
    return rotate(q, tables) @ (rotate(k, tables).mT @ v) / norm


def additive(q: Tensor, k: Tensor, v: Tensor, w_q: Tensor, w_k: Tensor, keep: Tensor) -> Tensor:
    """Compute additive attention."""
    scale = q.shape[-1] ** -0.5
    query = (_shares(q @ w_q[..., None] * scale, keep) * q).sum(2, keepdim=True)
    p = query * k
    return (_shares(p @ w_k[..., None] * scale, keep) * p).sum(2, keepdim=True) * v


def random_walk(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    anchors_q: Tensor,
    anchors_k: Tensor,
    keep: Tensor,
    decay: float,
) -> Tensor:
    """Compute a random walk of any length between anchors (heads, M, d)."""
    looked_up = (q @ anchors_k.mT).softmax(-1)  # [B, H, N, M]
    read = _shares(k @ anchors_q.mT, keep).mT  # [B, H, M, N]
    identity = torch.eye(anchors_q.shape[-2], dtype=q.dtype, device=q.device)
    walk = torch.linalg.solve(identity - decay * read @ looked_up, read @ v)
    return (1 - decay) * looked_up @ walk


def ripple(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    weights: Tensor,
    keep: Tensor,
    hw_shape: Tuple[int, int],
    eps: float = 1e-6,
) -> Tensor:
    """Compute ripple attention of Chebyshev groups; ``weights`` is (B, heads, N, R + 1).

    The last weight applies to all tokens. Each offset nearer than R adds its weight minus the last.
    """
    height, width = hw_shape
    last, reach = weights[..., -1:], weights.shape[-1] - 2
    k, values = k * keep, F.pad(v, (0, 1), value=1.0)
    total = last * (q @ (k.mT @ values))
    # Maps (B, heads, H, W, d), whose shifted parts are views: autograd saves them without a copy.
    q, more, total, k, values = (
        x.unflatten(2, hw_shape) for x in (q, weights - last, total, k, values)
    )
    k, values = (F.pad(x, (0, 0, reach, reach, reach, reach)) for x in (k, values))
    for down in range(2 * reach + 1):
        for right in range(2 * reach + 1):
            near = (..., slice(down, down + height), slice(right, right + width), slice(None))
            ring = max(abs(down - reach), abs(right - reach))
            score = more[..., ring, None] * (q * k[near]).sum(-1, keepdim=True)
            total = total + score * values[near]
    return (total[..., :-1] / (total[..., -1:] + eps)).flatten(2, 3)


def stick_weights(logits: Tensor) -> Tensor:
    """Compute stick-breaking weights (..., R + 1) with PyTorch's offset from logits (..., R)."""
    count = logits.shape[-1]
    left, parts = torch.ones_like(logits[..., 0]), []
    for r in range(count):
        broken = 1 / (1 + (count - r) * torch.exp(-logits[..., r]))
        parts.append(left * broken)
        left = left * (1 - broken)
    return torch.stack([*parts, left], dim=-1)


def _shares(scores: Tensor, keep: Tensor) -> Tensor:
    """Compute a softmax over the tokens of (B, H, N, M): 0 for padding, also if all is padding."""
    top = scores.detach().masked_fill(keep == 0, -1e300).amax(2, keepdim=True)
    # Not clamp, which has no gradient at its bound, the largest score, with torch 2.15.
    weights = (scores - top).masked_fill(keep == 0, 0).exp() * keep
    total = weights.sum(2, keepdim=True)
    return weights / total.where(total > 0, 1)
