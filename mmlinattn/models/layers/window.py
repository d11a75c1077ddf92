"""Softmax attention in windows, as in Swin."""

import math
from typing import Optional, Tuple

import torch
import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import Tensor, nn

from ...ops.common.numerics import constant
from ...utils import check_integer
from .linear_projection import PLAIN, projection_bias
from .relative_position_bias import relative_position_index
from .softmax import SoftmaxAttention, softmax_attention
from .token_layout import TokenLayout, require_static_size

# Added to the logits of tokens that share a window only because of the cyclic shift.
SHIFT_MASK = -100.0


@MODELS.register_module()
class WindowAttention(SoftmaxAttention):
    """Window attention of Swin (Liu et al., ICCV 2021), linear in the number of tokens.

    Softmax attention within windows of the map, with a learnt bias per head and relative position.

    A side of the map that is no longer than the window gives one window without shift. A longer
    side is padded to a multiple of the window, right and bottom, with tokens that are 0 *before*
    the projection. As in the released code they are not masked as keys. In a padded batch the
    result of an image then depends on the borders of its windows.

    Args:
        window_size: side of a window.
        shift: shift the windows cyclically by half their side; tokens that are not neighbours on
            the map are masked.
        relative_bias: add the relative position bias.
        embed_dims, num_heads, kwargs: options of :class:`SoftmaxAttention`. Extra tokens are not
            supported.

    Raises:
        ValueError: ``window_size`` is not a positive integer, or ``shift`` no bool.

    Example:
        >>> attn = WindowAttention(embed_dims=32, num_heads=4, window_size=4, shift=True)
        >>> attn(torch.randn(2, 10 * 12, 32), hw_shape=(10, 12)).shape
        torch.Size([2, 120, 32])
    """

    needs_map = True
    any_export_size = False
    cross_values = None
    supports_extra_tokens = False
    backbone_options = (*SoftmaxAttention.backbone_options, 'window_size', 'shift')

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        window_size: int = 7,
        shift: bool = False,
        relative_bias: bool = True,
        **kwargs,
    ) -> None:
        super().__init__(embed_dims, num_heads, **kwargs)
        self.window_size = check_integer('window_size', window_size)
        if shift not in (True, False):
            raise ValueError(
                f'shift must be True or False, got {shift!r}: windows shift by half their side'
            )
        self.shift = bool(shift)
        self.relative_bias = None
        if relative_bias:
            self.relative_bias = nn.Parameter(torch.empty((2 * window_size - 1) ** 2, num_heads))
            nn.init.trunc_normal_(self.relative_bias, std=0.02)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: TokenLayout) -> Tensor:
        owner = type(self).__name__
        windows = WindowPartition(layout.hw_shape, self.window_size, self.shift, owner)
        bias = self._projection_of_zero(q) if windows.is_padded else None
        if bias is not None:
            # A projected gate has the last part.
            bias = bias[: 3 * self.embed_dims].view(3, 1, self.num_heads, 1, 1, -1)
        if windows.is_exact or q.is_cpu:
            biases = (None,) * 3 if bias is None else bias.unbind(0)
            q, k, v = (windows.partition(x, b) for x, b in zip((q, k, v), biases))
        else:  # a GPU copies them in less time than the host needs to launch two more series
            q, k, v = windows.partition(torch.stack((q, k, v)), bias).unbind(0)
        mask = layout.key_padding_mask
        if mask is not None:
            mask = windows.partition(mask[:, None, :, None]).flatten(1)
        dropout = self.attn_drop if self.training else 0.0
        out = softmax_attention(q, k, v, mask, bias=self._bias(windows, q), dropout=dropout)
        return windows.reverse(out)

    def _projection_of_zero(self, like: Tensor) -> Optional[Tensor]:
        """Return what a padded token 0 becomes: the bias, if no other layer replaces in_proj."""
        if type(self.in_proj) in PLAIN:
            return projection_bias(self.in_proj)
        return self.in_proj(like.new_zeros(1, self.embed_dims))[0]

    def _bias(self, windows: 'WindowPartition', q: Tensor) -> Optional[Tensor]:
        """Return the bias of the logits of windows q (B * n, heads, M, d), or None."""
        bias = None
        if self.relative_bias is not None:
            index = constant(_bias_index, q.device, *windows.sizes, self.window_size)
            bias = self.relative_bias[index].permute(2, 0, 1)[None].to(q.dtype)  # [1, h, M, M]
        if windows.is_shifted:
            shift_mask = windows.shift_mask(q)
            bias = shift_mask if bias is None else bias + shift_mask
            bias = bias.repeat(q.shape[0] // shift_mask.shape[0], 1, 1, 1)
        return bias


def _bias_index(rows: int, columns: int, window_size: int, device: torch.device) -> Tensor:
    """Return the place in the table of biases of each pair of tokens of a window, (M, M)."""
    y, x = torch.arange(rows, device=device), torch.arange(columns, device=device)
    reach = window_size - 1, window_size - 1
    index = relative_position_index(y[:, None] - y, x[:, None] - x, reach)
    return index.reshape(rows * columns, rows * columns)


class WindowPartition:
    """Partition of a map into windows of equal size; a shorter side of the map is one window.

    With ``shift`` the windows are shifted cyclically. ``owner`` names the attention in messages.
    """

    def __init__(
        self,
        hw_shape: Tuple[int, int],
        window_size: int,
        shift: bool = False,
        owner: str = 'WindowPartition',
    ) -> None:
        require_static_size(owner, hw_shape, 'it partitions the map into windows')
        # A trace can record sizes as tensors; windows need integers.
        height, width = int(hw_shape[0]), int(hw_shape[1])
        rows = height if height < window_size else window_size
        columns = width if width < window_size else window_size
        counts = -(-height // rows), -(-width // columns)
        reach = window_size // 2 if shift else 0
        self.hw_shape = height, width
        self.sizes = rows, columns
        self.counts = counts  # windows along the height and the width
        self.padding = counts[0] * rows - height, counts[1] * columns - width  # bottom, right
        self.shifts = reach if counts[0] > 1 else 0, reach if counts[1] > 1 else 0
        self.is_padded, self.is_shifted = self.padding != (0, 0), self.shifts != (0, 0)
        self.is_exact = not self.is_padded and not self.is_shifted

    def partition(self, x: Tensor, padding_value: Optional[Tensor] = None) -> Tensor:
        """Partition (..., B, heads, N, d) into windows (..., B * windows, heads, M, d).

        The value of padded tokens is broadcastable to (..., B, heads, 1, 1, d); None for zeros.
        """
        *outer, batch, heads, _, dim = x.shape
        x = x.reshape(math.prod(outer), batch, heads, *self.hw_shape, dim)
        if self.is_padded:
            pad = (0, 0, 0, self.padding[1], 0, self.padding[0])
            x = F.pad(x, pad)
            if padding_value is not None:
                inside = F.pad(x.new_ones(*self.hw_shape, 1, dtype=torch.bool), pad)
                x = torch.where(inside, x, padding_value.to(x.dtype))
        if self.is_shifted:
            x = x.roll((-self.shifts[0], -self.shifts[1]), (3, 4))
        (rows, columns), (height, width) = self.counts, self.sizes
        x = x.view(x.shape[0], batch, heads, rows, height, columns, width, dim)
        x = x.permute(0, 1, 3, 5, 2, 4, 6, 7)  # [..., B, rows, columns, heads, a, b, d]
        return x.reshape(*outer, batch * rows * columns, heads, height * width, dim)

    def reverse(self, x: Tensor) -> Tensor:
        """Merge windows (B * windows, heads, M, d) into a map (B, heads, N, d)."""
        heads, dim = x.shape[1], x.shape[3]
        (rows, columns), (height, width) = self.counts, self.sizes
        x = x.view(-1, rows, columns, heads, height, width, dim).permute(0, 3, 1, 4, 2, 5, 6)
        x = x.reshape(-1, heads, rows * height, columns * width, dim)
        if self.is_shifted:
            x = x.roll(self.shifts, (2, 3))
        if self.is_padded:
            x = x[:, :, : self.hw_shape[0], : self.hw_shape[1]]
        return x.flatten(2, 3)

    def shift_mask(self, q: Tensor) -> Tensor:
        """Return SHIFT_MASK for tokens that the shift has joined, else 0, (windows, 1, M, M)."""
        region = constant(_shift_regions, q.device, self.counts, self.sizes, self.shifts)
        return SHIFT_MASK * (region != region.transpose(1, 2))[:, None].to(q.dtype)


def _shift_regions(
    counts: Tuple[int, int], sizes: Tuple[int, int], shifts: Tuple[int, int], device: torch.device
) -> Tensor:
    """Return a number for each token, (windows, 1, M), equal for neighbours in a window."""
    wrapped = []
    for count, size, shift in zip(counts, sizes, shifts):
        # In the last window the tokens from the other end of the map come last.
        position = torch.arange(count * size, device=device)
        wrapped.append((position >= count * size - shift).view(count, size))
    rows, columns = wrapped[0][:, None, :, None], wrapped[1][None, :, None]
    return (2 * rows + columns).view(-1, 1, sizes[0] * sizes[1])
