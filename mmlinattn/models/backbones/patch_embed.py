"""Patches of a map, and their positions."""

import torch.nn.functional as F
from torch import Tensor, nn

from ...ops.common.numerics import is_static


def fill_up(x: Tensor, side: int) -> Tensor:
    """A map (B, C, H, W) with zeros, right and below, so that ``side`` divides its size.

    Example:
        >>> import torch
        >>> fill_up(torch.ones(1, 1, 5, 8), 4).shape
        torch.Size([1, 1, 8, 8])
    """
    rows, columns = ((side - size % side) % side for size in x.shape[-2:])
    # What an export with dynamic sizes does not know it must not ask.
    if is_static(rows, columns) and not (rows or columns):
        return x
    return F.pad(x, (0, columns, 0, rows))


class PatchConv(nn.Conv2d):
    """A linear layer of patches; a map that they do not divide is filled up with zeros.

    Args:
        in_channels, out_channels: channels.
        patch_size: side of a patch.
    """

    def __init__(self, in_channels: int, out_channels: int, patch_size: int) -> None:
        super().__init__(in_channels, out_channels, patch_size, stride=patch_size)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to (B, out_channels, H / p, W / p), rounded up."""
        return super().forward(fill_up(x, self.kernel_size[0]))


def check_positions(name: str, theirs: Tensor, ours: Tensor) -> None:
    """Raise ValueError unless positions of a checkpoint could be resized to a model's."""
    if theirs.dim() != 3 or theirs.shape[-1] != ours.shape[-1]:
        raise ValueError(
            f'{name} of shape {tuple(theirs.shape)} does not fit one of {tuple(ours.shape)}: only '
            'the number of positions may differ'
        )
