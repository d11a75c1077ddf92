"""Attention operators as their papers write them, in plain PyTorch.

Each is a direct transcription of the formula, like a first implementation: one operation per
symbol, every intermediate result a tensor, in the dtype of the inputs. All are (B, heads, N, d).
"""

from typing import Sequence, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor

Tables = Tuple[Tensor, Tensor]


def rala(q: Tensor, k: Tensor, v: Tensor, rotary: Tables) -> Tensor:
    """Compute RALA with rotary position, see :func:`mmlinattn.ops.rala_attention`."""
    num_tokens, dim = q.shape[-2:]
    q, k = F.elu(q) + 1, F.elu(k) + 1
    scores = torch.einsum('bhd,bhnd->bhn', q.mean(2), k) * dim**-0.5
    k = k * (num_tokens * scores.softmax(-1))[..., None]
    denominator = torch.einsum('bhnd,bhd->bhn', q, k.mean(2)) + 1e-6
    q, k = rotate(q, rotary), rotate(k, rotary)
    state = torch.einsum('bhnd,bhne->bhde', k, v) / num_tokens
    return torch.einsum('bhnd,bhde->bhne', q, state) / denominator[..., None]


def mala(q: Tensor, k: Tensor, v: Tensor, rotary: Tables) -> Tensor:
    """Compute MALA with rotary position, see :func:`mmlinattn.ops.mala_attention`."""
    num_tokens, dim = q.shape[-2:]
    q, k = F.elu(q) + 1, F.elu(k) + 1
    z = dim**-0.5 * torch.einsum('bhnd,bhd->bhn', q, k.mean(2))[..., None]
    q, k = rotate(q, rotary), rotate(k, rotary)
    state = torch.einsum('bhnd,bhne->bhde', k, v) * (dim**-0.5 / num_tokens)
    out = torch.einsum('bhnd,bhde->bhne', q, state)
    return (1 + 1 / (z + 1e-6)) * out - z * v.mean(2, keepdim=True)


def linear(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute linear attention of features, see :func:`mmlinattn.ops.linear_attention`."""
    state = torch.einsum('bhnd,bhne->bhde', k, v)
    normaliser = torch.einsum('bhnd,bhd->bhn', q, k.sum(2)) + 1e-6
    return torch.einsum('bhnd,bhde->bhne', q, state) / normaliser[..., None]


def additive(q: Tensor, k: Tensor, v: Tensor, w_q: Tensor, w_k: Tensor) -> Tensor:
    """Compute additive attention, see :func:`mmlinattn.ops.additive_attention`."""
    scale = q.shape[-1] ** -0.5
    alpha = (scale * torch.einsum('bhnd,hd->bhn', q, w_q)).softmax(-1)
    query = torch.einsum('bhn,bhnd->bhd', alpha, q)
    p = query[:, :, None] * k
    beta = (scale * torch.einsum('bhnd,hd->bhn', p, w_k)).softmax(-1)
    return torch.einsum('bhn,bhnd->bhd', beta, p)[:, :, None] * v


def random_walk(
    q: Tensor, k: Tensor, v: Tensor, anchors_q: Tensor, anchors_k: Tensor, decay: float
) -> Tensor:
    """Compute random walk attention in the order of the paper.

    See :func:`mmlinattn.ops.random_walk_attention`.
    """
    looked_up = torch.einsum('bhnd,hmd->bhnm', q, anchors_k).softmax(-1)
    read = torch.einsum('hmd,bhnd->bhmn', anchors_q, k).softmax(-1)
    walk = (decay * (read @ looked_up)).to(torch.promote_types(q.dtype, torch.float32))
    identity = torch.eye(walk.shape[-1], dtype=walk.dtype, device=q.device)
    inverse = torch.linalg.inv(identity - walk).to(q.dtype)  # torch has no inverse for half types
    return (1 - decay) * (looked_up @ inverse) @ (read @ v)


def ripple_tables(
    q: Tensor, k: Tensor, v: Tensor, weights: Tensor, hw_shape: Tuple[int, int]
) -> Tensor:
    """Compute ripple attention by summed-area tables as in its paper, with torch's backward pass.

    See :func:`mmlinattn.ops.ripple_attention`. ``weights`` is (B, heads, N, R + 1), with Chebyshev
    groups.
    """
    height, width = hw_shape
    dtype = v.dtype
    q, k, v = (x.to(torch.promote_types(dtype, torch.float32)) for x in (q, k, v))
    outer = (k[..., :, None] * F.pad(v, (0, 1), value=1.0)[..., None, :]).unflatten(2, hw_shape)
    table = F.pad(outer.cumsum(2).cumsum(3), (0, 0, 0, 0, 1, 0, 1, 0))  # [B, H, h + 1, w + 1, m, e]
    total, inner, max_distance = 0, 0, weights.shape[-1] - 1
    for r in range(max_distance + 1):
        reach = max(hw_shape) if r == max_distance else r
        rows, cols = (torch.arange(n, device=q.device) for n in hw_shape)
        top, bottom = (rows - reach).clamp(min=0), (rows + reach + 1).clamp(max=height)
        left, right = (cols - reach).clamp(min=0), (cols + reach + 1).clamp(max=width)
        band = table[:, :, bottom] - table[:, :, top]
        square = (band[:, :, :, right] - band[:, :, :, left]).flatten(2, 3)
        read = torch.einsum('bhnd,bhnde->bhne', q, square)
        total = total + weights[..., r, None] * (read - inner)
        inner = read
    return (total[..., :-1] / (total[..., -1:] + 1e-6)).to(dtype)


def rotary_tables(
    hw_shape: Sequence[int], head_dim: int, dtype: torch.dtype, device: torch.device
) -> Tables:
    """Return sines and cosines (N, d) of all positions; rows use the first half of the channels."""
    height, width = hw_shape
    work = torch.promote_types(dtype, torch.float32)
    angle = 10000 ** -torch.linspace(0, 1, head_dim // 4, dtype=work, device=device)
    angle = angle.repeat_interleave(2)  # [d/2]
    rows = torch.arange(height, dtype=work, device=device)[:, None, None] * angle
    columns = torch.arange(width, dtype=work, device=device)[None, :, None] * angle
    sizes = (height, width, head_dim // 2)
    angles = torch.cat([rows.expand(sizes), columns.expand(sizes)], -1).flatten(0, 1)
    return angles.sin().to(dtype), angles.cos().to(dtype)


def rotate(x: Tensor, rotary: Tables) -> Tensor:
    """Rotate neighbouring channels by the angles of the tables (N, d)."""
    sin, cos = rotary
    turned = torch.stack([-x[..., 1::2], x[..., ::2]], dim=-1).flatten(-2)
    return x * cos + turned * sin
