"""Softmax attention in windows, as in Swin."""

from typing import Optional, Tuple

import torch
import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import Tensor, nn

from ...utils import check_integer
from .attention_info import AttentionInfo
from .base import TokenLayout, require_static_size
from .linear_projection import projection_bias
from .relative_position_bias import relative_position_index
from .softmax import SoftmaxAttention, softmax_attention

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
        embed_dims, num_heads: channels and heads.
        window_size: side of a window.
        shift: shift the windows cyclically by half their side; tokens that are not neighbours on
            the map are masked.
        relative_bias: add the relative position bias.
        attn_drop: dropout on the attention weights.
        others: see :class:`BaseAttention`. Extra tokens (such as a class token) are not supported.

    Raises:
        ValueError: ``window_size`` is not a positive integer; errors of :class:`BaseAttention`.

    Example:
        >>> import torch
        >>> attn = WindowAttention(embed_dims=32, num_heads=4, window_size=4, shift=True)
        >>> attn(torch.randn(2, 10 * 12, 32), hw_shape=(10, 12)).shape
        torch.Size([2, 120, 32])
    """

    info = AttentionInfo(
        formula='softmax(q_i . k_j/sqrt d + b_ij) v_j in windows of R x R tokens',
        time='O(N R^2 d)',
        memory='O(N d)',
        source='Liu et al., Swin, ICCV 2021',
        use='released Swin weights; no token attends beyond its window',
        needs_map=True,
        any_export_size=False,
    )
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
        self.shift = shift
        self.relative_bias = None
        if relative_bias:
            self.relative_bias = nn.Parameter(torch.empty((2 * window_size - 1) ** 2, num_heads))
            nn.init.trunc_normal_(self.relative_bias, std=0.02)
            coords = torch.arange(window_size, device='cpu')
            offsets = coords[:, None] - coords  # [w, w]
            index = relative_position_index(offsets, offsets, (window_size - 1,) * 2)
            self.register_buffer('index', index, persistent=False)  # [w, w, w, w]: i then j

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: TokenLayout) -> Tensor:
        windows = WindowPartition(
            layout.hw_shape, self.window_size, self.shift, type(self).__name__
        )
        # The projection of a token 0 is its bias.
        bias = projection_bias(self.in_proj)
        # A projected gate is the last of four parts.
        values = [None] * 3 if bias is None else bias.split(self.embed_dims)
        q, k, v = (windows.partition(x, value) for x, value in zip((q, k, v), values))
        mask = layout.key_padding_mask
        if mask is not None:
            mask = windows.partition(mask[:, None, :, None]).flatten(1)
        dropout = self.attn_drop if self.training else 0.0
        out = softmax_attention(q, k, v, mask, bias=self._bias(windows, q), dropout=dropout)
        return windows.reverse(out)

    def _bias(self, windows: 'WindowPartition', q: Tensor) -> Optional[Tensor]:
        """Return the bias of the logits of windows q (B * n, heads, M, d), or None."""
        bias = None
        if self.relative_bias is not None:
            rows, columns = windows.sizes
            index = self.index[:rows, :columns, :rows, :columns].flatten(2).flatten(0, 1)
            bias = self.relative_bias[index].permute(2, 0, 1)[None].to(q.dtype)  # [1, h, M, M]
        if any(windows.shifts):
            region = windows.shift_regions(q.device)  # [n, M]
            shift_mask = SHIFT_MASK * (region[:, None] != region[:, :, None])[:, None].to(q.dtype)
            bias = shift_mask if bias is None else bias + shift_mask
            bias = bias.repeat(q.shape[0] // region.shape[0], 1, 1, 1)
        return bias


class WindowPartition:
    """Partition of a map into windows of equal size.

    Args:
        hw_shape: (H, W) of the map.
        window_size: side of a window; a shorter side of the map is one window.
        shift: shift the windows cyclically.
        owner: name of the attention, for messages.

    Attributes:
        sizes: height and width of a window.
        counts: windows along the height and the width.
        padding: rows and columns that are added, bottom and right.
        shifts: rows and columns of the shift.

    Raises:
        ValueError: the size of the map is dynamic in an export.
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
        self.hw_shape = hw_shape = tuple(int(size) for size in hw_shape)
        self.sizes = tuple(min(window_size, size) for size in hw_shape)
        self.counts = tuple(-(-size // side) for size, side in zip(hw_shape, self.sizes))
        self.padding = tuple(
            n * side - size for n, side, size in zip(self.counts, self.sizes, hw_shape)
        )
        self.shifts = tuple(window_size // 2 if shift and n > 1 else 0 for n in self.counts)

    def partition(self, x: Tensor, padding_value: Optional[Tensor] = None) -> Tensor:
        """Partition (B, heads, N, d) into windows (B * windows, heads, M, d).

        Args:
            x: tokens of the map.
            padding_value: (heads * d), value of the padded tokens; None for zeros.
        """
        x = x.unflatten(2, self.hw_shape)  # [B, h, H, W, d]
        if any(self.padding):
            x = F.pad(x, (0, 0, 0, self.padding[1], 0, self.padding[0]))
            if padding_value is not None:
                padded = torch.ones(self.hw_shape, dtype=torch.bool, device=x.device)
                padded = ~F.pad(padded, (0, self.padding[1], 0, self.padding[0]))
                padding_value = padding_value.to(x.dtype).unflatten(0, (x.shape[1], 1, 1, -1))
                x = torch.where(padded[..., None], padding_value, x)
        if any(self.shifts):
            x = x.roll([-s for s in self.shifts], (2, 3))
        x = x.unflatten(3, (self.counts[1], -1)).unflatten(2, (self.counts[0], -1))
        x = x.permute(0, 2, 4, 1, 3, 5, 6)  # [B, rows, columns, h, a, b, d]
        return x.flatten(4, 5).flatten(0, 2)

    def reverse(self, x: Tensor) -> Tensor:
        """Merge windows (B * windows, heads, M, d) into a map (B, heads, N, d)."""
        x = x.unflatten(0, (-1, *self.counts)).unflatten(4, self.sizes)
        x = x.permute(0, 3, 1, 4, 2, 5, 6).flatten(4, 5).flatten(2, 3)  # [B, h, H, W, d]
        if any(self.shifts):
            x = x.roll(self.shifts, (2, 3))
        height, width = self.hw_shape
        return x[:, :, :height, :width].flatten(2, 3)

    def shift_regions(self, device: torch.device) -> Tensor:
        """Return the region of each token, (windows, M).

        The cyclic shift joins up to nine regions. Only tokens of one region are neighbours.
        """
        axes = []
        for count, size, shift in zip(self.counts, self.sizes, self.shifts):
            coord = torch.arange(count * size, device=device)
            end = count * size
            axes.append(
                (coord >= end - size).int() + (coord >= end - shift).int() if shift else 0 * coord
            )
        region = 3 * axes[0][:, None] + axes[1]  # [H, W]
        region = region.unflatten(1, (self.counts[1], -1)).unflatten(0, (self.counts[0], -1))
        return region.transpose(1, 2).flatten(2).flatten(0, 1)
