"""Residual connection with stochastic depth and layer scale."""

from typing import List, Optional, Sequence

import torch
from mmcv.cnn.bricks import DropPath
from torch import Tensor, nn

from ...ops.common.packed import PackedShapes


def add_branch(
    x: Tensor,
    branch: Tensor,
    drop_path: nn.Module,
    scale: Optional[Tensor] = None,
    packed: Optional[PackedShapes] = None,
) -> Tensor:
    """Compute ``x + drop_path(branch) * scale`` in one pass over the tokens.

    Args:
        x, branch: tokens (B, N, C).
        drop_path: mmcv's ``DropPath``, or another module that is called.
        scale: learnt scales of the channels (C,), or None.
        packed: shapes of packed images, of which each is kept or dropped by itself.

    Example:
        >>> x, branch = torch.zeros(64, 3, 2), torch.ones(64, 3, 2)
        >>> add_branch(x, branch, DropPath(0.5)).unique().tolist()
        [0.0, 2.0]
    """
    if type(drop_path) is not DropPath:
        branch = drop_path(branch)
    elif drop_path.training and drop_path.drop_prob:
        keep: float = 1 - drop_path.drop_prob  # type: ignore[assignment, operator]  # DropPath's
        count = x.shape[0] if packed is None else len(packed.lengths)
        kept = branch.new_empty(count, 1, 1).bernoulli_(keep)
        if packed is not None:
            images = zip(kept, packed.lengths)
            kept = torch.cat([image.expand(length, 1) for image, length in images])
        return torch.addcmul(x, branch, kept if scale is None else kept * scale, value=1 / keep)
    return x + branch if scale is None else torch.addcmul(x, branch, scale)


def drop_path_rates(rate: float, depths: Sequence[int]) -> List[List[float]]:
    """Return drop path rates that rise from 0 to ``rate`` over all blocks, one list per stage."""
    if not isinstance(rate, (int, float)) or not 0 <= rate < 1:
        raise ValueError(f'drop_path_rate must be in [0, 1), got {rate!r}')
    rates = torch.linspace(0, rate, sum(depths), device='cpu').tolist()
    return [rates[sum(depths[:i]) : sum(depths[: i + 1])] for i in range(len(depths))]
