"""Operators in float64, with time and memory linear in the tokens; padding has weight 0.

The definitions of the package (``backend='reference'``) are N x N, too large for the sizes of a
GPU. These are written from the formulas, with gradients by autograd, and share no code with the
package. Tensors are (B, heads, N, d). ``keep`` (B, 1, N, 1) is 0 for a padded key, else 1.
``hw_shape`` is the map of the rotary position; None means cross-attention without position.
"""

from typing import List, Optional, Sequence, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .textbook import rotary_tables, rotate

Map = Optional[Sequence[int]]
EPS = 1e-6


def linear(q: Tensor, k: Tensor, v: Tensor, keep: Tensor, hw_shape: Map = None) -> Tensor:
    """Compute linear attention of features."""
    k = k * keep
    norm = q @ k.sum(2)[..., None] + EPS
    q, k = _rotated(q, k, hw_shape)
    return q @ (k.mT @ v) / norm


def linear_elu1(q: Tensor, k: Tensor, v: Tensor, keep: Tensor, hw_shape: Map = None) -> Tensor:
    """Compute linear attention with the feature map elu + 1."""
    return linear(F.elu(q) + 1, F.elu(k) + 1, v, keep, hw_shape)


def rala(q: Tensor, k: Tensor, v: Tensor, keep: Tensor, hw_shape: Map = None) -> Tensor:
    """Compute RALA; the mean query is that of all queries in cross-attention."""
    q, k = F.elu(q) + 1, F.elu(k) + 1
    asked = torch.ones_like(q[:, :1, :, :1]) if hw_shape is None else keep
    mean = (q * asked).sum(2, keepdim=True) / asked.sum(2, keepdim=True).clamp(min=1)
    # The shares are a_j / N: they sum to 1 because the weights a_j have mean 1.
    k = k * _shares(k @ mean.mT * q.shape[-1] ** -0.5, keep)
    return linear(q, k, v, keep, hw_shape)


def mala(q: Tensor, k: Tensor, v: Tensor, keep: Tensor, hw_shape: Map = None) -> Tensor:
    """Compute MALA."""
    q, k = (F.elu(q) + 1) * q.shape[-1] ** -0.5, F.elu(k) + 1
    share = keep / keep.sum(2, keepdim=True).clamp(min=1)
    z = q @ (k * share).sum(2)[..., None]
    q, k = _rotated(q, k, hw_shape)
    return (1 + 1 / (z + EPS)) * (q @ ((k * share).mT @ v)) - z * (v * share).sum(2, keepdim=True)


def learnt(x: Tensor, frequencies: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute adaptive features, with one feature map per head."""
    phase = x @ frequencies.mT
    return F.relu(torch.cat([phase.sin(), phase.cos()], -1) @ weight.mT + bias[:, None])


def additive(x: Sequence[Tensor], keep: Tensor) -> Tensor:
    """Compute additive attention; ``x`` has q, k, v and the weights (heads, d) of q and k."""
    q, k, v, w_q, w_k = x
    scale = q.shape[-1] ** -0.5
    query = (_shares(q @ w_q[..., None] * scale, keep) * q).sum(2, keepdim=True)
    p = query * k
    return (_shares(p @ w_k[..., None] * scale, keep) * p).sum(2, keepdim=True) * v


def random_walk(x: Sequence[Tensor], keep: Tensor, decay: float, steps: Optional[int]) -> Tensor:
    """Compute a random walk of ``steps`` or any number of steps.

    ``x`` has q, k, v and the queries and keys of the anchors, (heads, M, d).
    """
    q, k, v, anchors_q, anchors_k = x
    looked_up = (q @ anchors_k.mT).softmax(-1)  # [B, H, N, M]
    read = _shares(k @ anchors_q.mT, keep).mT  # [B, H, M, N]
    if steps is None:
        identity = torch.eye(anchors_q.shape[-2], dtype=q.dtype, device=q.device)
        walk = torch.linalg.solve(identity - decay * read @ looked_up, read @ v)
        return (1 - decay) * looked_up @ walk
    walks: List[Tensor] = [v]
    for _ in range(steps):
        walks.append(looked_up @ (read @ walks[-1]))
    parts = (decay**i * walk for i, walk in enumerate(walks[1:]))
    total = sum(parts, torch.zeros_like(v))
    return total * (1 - decay) / (1 - decay**steps)


def ripple(x: Sequence[Tensor], keep: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
    """Compute ripple attention of Chebyshev groups.

    ``x`` has q, k, v and weights (B, heads, N, R + 1). The last weight applies to all tokens. Each
    offset nearer than R adds its weight minus the last.
    """
    q, k, v, weights = x
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
    return (total[..., :-1] / (total[..., -1:] + EPS)).flatten(2, 3)


def _rotated(q: Tensor, k: Tensor, hw_shape: Map) -> Tuple[Tensor, Tensor]:
    if hw_shape is None:
        return q, k
    tables = rotary_tables(hw_shape, q.shape[-1], q.dtype, q.device)
    return rotate(q, tables), rotate(k, tables)


def _shares(scores: Tensor, keep: Tensor) -> Tensor:
    """Compute a softmax over the tokens of (B, H, N, M): 0 for padding, also if all is padding."""
    top = scores.detach().masked_fill(keep == 0, -1e300).amax(2, keepdim=True)
    # Not clamp, which has no gradient at its bound, the largest score, with torch 2.15.
    weights = (scores - top).masked_fill(keep == 0, 0).exp() * keep
    total = weights.sum(2, keepdim=True)
    return weights / total.where(total > 0, 1)
