"""The random walk between anchors: everything of size N is N x M or N x d."""

import math
from typing import Optional

import torch
from torch import Tensor

from ..numerics import accumulation_dtype, masked_softmax, no_autocast


def random_walk_portable(
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
    """See :func:`mmlinattn.ops.random_walk_attention`."""
    out_dtype = q.dtype
    dtype = accumulation_dtype(out_dtype)
    # Half precision would lose what small decays add, and logits of 60 their first decimal.
    with no_autocast(q):
        q, k, v, anchors_q, anchors_k = (t.to(dtype) for t in (q, k, v, anchors_q, anchors_k))
        mask = None if key_padding_mask is None else key_padding_mask[:, None, None]
        g_q = (q @ anchors_k.transpose(-2, -1)).softmax(-1)  # [B, H, N, M]
        g_k = masked_softmax(anchors_q @ k.transpose(-2, -1), mask)  # [B, H, M, N]
        walk = None if steps == 1 else g_k @ g_q  # [B, H, M, M]
        return (g_q @ walk_on(g_k @ v, walk, decay, steps, solver)).to(out_dtype)


def walk_on(
    state: Tensor, walk: Optional[Tensor], decay: float, steps: Optional[int], solver: str
) -> Tensor:
    """All steps after the first one, between the anchors, and the normaliser.

    Args:
        state: ``G_K v``, (B, heads, M, d).
        walk: ``G_K G_Q``, (B, heads, M, M); unused for one step.
    """
    if steps == 1:
        return state
    walk = decay * walk
    if steps is not None:
        total = state
        for _ in range(steps - 1):
            total = state + walk @ total
        return (1 - decay) / (1 - decay**steps) * total
    state = (1 - decay) * state
    if solver == 'solve':
        identity = torch.eye(walk.shape[-1], dtype=walk.dtype, device=walk.device)
        return torch.linalg.solve(identity - walk, state)
    # (I - W)^-1 = (I + W)(I + W^2)(I + W^4)...: the rows of W sum to the decay, so what is left
    # out after n factors is decay^(2^n).
    num_factors = series_factors(decay, walk.dtype)
    for i in range(num_factors):
        state = state + walk @ state
        if i + 1 < num_factors:
            walk = walk @ walk
    return state


def series_factors(decay: float, dtype: torch.dtype) -> int:
    """Factors of the product form that reach the precision of ``dtype``.

    Example:
        >>> [series_factors(decay, torch.float32) for decay in (0.1, 0.5, 0.9)]
        [3, 5, 8]
    """
    digits = math.log(torch.finfo(dtype).eps) / math.log(decay)
    return max(1, math.ceil(math.log2(digits)))
