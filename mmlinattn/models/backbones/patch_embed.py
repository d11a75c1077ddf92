"""Patch embedding and checks of position embeddings."""

import torch.nn.functional as F
from torch import Tensor, nn

from ...ops.common.numerics import is_static


def pad_to_multiple(x: Tensor, side: int) -> Tensor:
    """Pad a map (B, C, H, W) with zeros, right and bottom, to multiples of ``side``.

    Example:
        >>> import torch
        >>> pad_to_multiple(torch.ones(1, 1, 5, 8), 4).shape
        torch.Size([1, 1, 8, 8])
    """
    rows, columns = ((side - size % side) % side for size in x.shape[-2:])
    # An export with dynamic sizes must not branch on them.
    if is_static(rows, columns) and not (rows or columns):
        return x
    return F.pad(x, (0, columns, 0, rows))


class PatchConv(nn.Conv2d):
    """Convolution of non-overlapping patches; the map is padded with zeros to whole patches.

    Args:
        in_channels, out_channels: channels.
        patch_size: side of a patch.
        bias: add a bias.
    """

    def __init__(
        self, in_channels: int, out_channels: int, patch_size: int, bias: bool = True
    ) -> None:
        super().__init__(in_channels, out_channels, patch_size, stride=patch_size, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Embed (B, C, H, W) as (B, out_channels, H / p, W / p), rounded up."""
        return super().forward(pad_to_multiple(x, self.kernel_size[0]))


def check_positions(name: str, loaded: Tensor, expected: Tensor) -> None:
    """Raise ValueError unless loaded position embeddings can be resized to those of the model.

    Args:
        name: key in the checkpoint, for the message.
        loaded, expected: position embeddings of the checkpoint and of the model, (1, N, C).
    """
    if loaded.dim() != 3 or loaded.shape[-1] != expected.shape[-1]:
        raise ValueError(
            f'{name} has shape {tuple(loaded.shape)}, the model needs {tuple(expected.shape)}: '
            'only the number of positions may differ'
        )
