"""Softmax attention in windows, as in Swin."""

from typing import Optional, Tuple

import torch
import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import Tensor, nn

from .attention_info import AttentionCard
from .base import TokenMap, need_known_size
from .relative_position_bias import relative_index
from .softmax import SoftmaxAttention, softmax_attention

# Added to the logits of tokens that only the cyclic shift brings into one window.
APART = -100.0


@MODELS.register_module()
class WindowAttention(SoftmaxAttention):
    """Swin's attention (Liu et al., ICCV 2021): softmax attention within windows of the map, with a
    learnt bias for each relative position; linear in the number of tokens.

    A side of the map that is no longer than the window is one window, which is not shifted. Longer
    ones that windows do not divide are filled up, right and below, with tokens of zeros *before*
    the projection, which are keys like all others: what the released code does. In a padded batch
    the result of an image then depends on where its windows end.

    Args:
        embed_dims, num_heads: channels and heads.
        window_size: side of a window.
        shift: move the windows by half their side, in a circle; tokens that are not neighbours on
            the map do not see each other.
        relative_bias: the bias, one number a head and relative position.
        attn_drop: dropout on the attention weights.
        others: see :class:`BaseAttention`. It takes no extra tokens: they are in no window.

    Raises:
        ValueError: a window size below 1, and those of :class:`BaseAttention`.

    Example:
        >>> import torch
        >>> attn = WindowAttention(embed_dims=32, num_heads=4, window_size=4, shift=True)
        >>> attn(torch.randn(2, 10 * 12, 32), hw_shape=(10, 12)).shape
        torch.Size([2, 120, 32])
    """

    card = AttentionCard(
        formula='softmax(q_i . k_j/sqrt d + b_ij) v_j in windows of R x R tokens',
        time='O(N R^2 d)',
        memory='O(N d)',
        source='Liu et al., Swin, ICCV 2021',
        use="Swin's own: released weights; no token sees beyond its window",
        map=True,
    )
    takes_extra_tokens = False
    host_options = (*SoftmaxAttention.host_options, 'window_size', 'shift')

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
        if type(window_size) is not int or window_size < 1:
            raise ValueError(f'window_size must be a positive integer, got {window_size!r}')
        self.window_size = window_size
        self.shift = shift
        self.relative_bias = None
        if relative_bias:
            self.relative_bias = nn.Parameter(torch.empty((2 * window_size - 1) ** 2, num_heads))
            nn.init.trunc_normal_(self.relative_bias, std=0.02)
            place = torch.arange(window_size, device='cpu')
            apart = place[:, None] - place  # [w, w]
            index = relative_index(apart, apart, (window_size - 1,) * 2)
            self.register_buffer('index', index, persistent=False)  # [w, w, w, w]: i then j

    def attend(self, q: Tensor, k: Tensor, v: Tensor, tokens: TokenMap) -> Tensor:
        windows = Windows(tokens.hw_shape, self.window_size, self.shift, type(self).__name__)
        fills = [None] * 3 if self.in_proj.bias is None else self.in_proj.bias.chunk(3)
        # The gate's part of the projection, if any, is last.
        if self.gate == 'proj' and self.in_proj.bias is not None:
            fills = self.in_proj.bias.chunk(4)
        q, k, v = (windows.divide(x, fill) for x, fill in zip((q, k, v), fills))
        mask = tokens.key_padding_mask
        if mask is not None:
            mask = windows.divide(mask[:, None, :, None]).flatten(1)
        dropout = self.attn_drop if self.training else 0.0
        bias = self._bias(windows, q)
        out = softmax_attention(q, k, v, mask, bias=bias, dropout=dropout)
        return windows.join(out)

    def _bias(self, windows: 'Windows', q: Tensor) -> Optional[Tensor]:
        """What is added to the logits of windows (B * n, heads, M, d), or None."""
        bias = None
        if self.relative_bias is not None:
            rows, columns = windows.sizes
            index = self.index[:rows, :columns, :rows, :columns].flatten(2).flatten(0, 1)
            bias = self.relative_bias[index].permute(2, 0, 1)[None].to(q.dtype)  # [1, h, M, M]
        if any(windows.shifts):
            region = windows.regions(q.device)  # [n, M]
            apart = APART * (region[:, None] != region[:, :, None])[:, None].to(q.dtype)
            bias = apart if bias is None else bias + apart
            bias = bias.repeat(q.shape[0] // region.shape[0], 1, 1, 1)
        return bias


class Windows:
    """The windows of a map, and where they lie.

    Args:
        hw_shape: (H, W) of the map.
        side: of a window, where the map is longer.
        shift: whether they are shifted.
        owner: whose windows, for errors.

    Raises:
        ValueError: a map whose size is not known, in an export.
    """

    def __init__(
        self, hw_shape: Tuple[int, int], side: int, shift: bool = False, owner: str = 'Windows'
    ) -> None:
        need_known_size(owner, hw_shape, 'it lays out windows')
        # Plain integers also while a trace counts in tensors.
        self.hw_shape = hw_shape = tuple(int(size) for size in hw_shape)
        self.sizes = tuple(min(side, size) for size in hw_shape)
        self.counts = tuple(-(-size // of) for size, of in zip(hw_shape, self.sizes))
        self.fill = tuple(n * of - size for n, of, size in zip(self.counts, self.sizes, hw_shape))
        self.shifts = tuple(side // 2 if shift and n > 1 else 0 for n in self.counts)

    def divide(self, x: Tensor, fill: Optional[Tensor] = None) -> Tensor:
        """(B, heads, N, d) to (B * windows, heads, M, d); ``fill`` (heads * d) is what tokens
        beside the map are, or None for zeros."""
        x = x.unflatten(2, self.hw_shape)  # [B, h, H, W, d]
        if any(self.fill):
            x = F.pad(x, (0, 0, 0, self.fill[1], 0, self.fill[0]))
            if fill is not None:
                beside = torch.ones(self.hw_shape, dtype=torch.bool, device=x.device)
                beside = ~F.pad(beside, (0, self.fill[1], 0, self.fill[0]))
                fill = fill.to(x.dtype).unflatten(0, (x.shape[1], 1, 1, -1))
                x = torch.where(beside[..., None], fill, x)
        if any(self.shifts):
            x = x.roll([-s for s in self.shifts], (2, 3))
        x = x.unflatten(3, (self.counts[1], -1)).unflatten(2, (self.counts[0], -1))
        x = x.permute(0, 2, 4, 1, 3, 5, 6)  # [B, rows, columns, h, a, b, d]
        return x.flatten(4, 5).flatten(0, 2)

    def join(self, x: Tensor) -> Tensor:
        """(B * windows, heads, M, d) to (B, heads, N, d)."""
        x = x.unflatten(0, (-1, *self.counts)).unflatten(4, self.sizes)
        x = x.permute(0, 3, 1, 4, 2, 5, 6).flatten(4, 5).flatten(2, 3)  # [B, h, H, W, d]
        if any(self.shifts):
            x = x.roll(self.shifts, (2, 3))
        height, width = self.hw_shape
        return x[:, :, :height, :width].flatten(2, 3)

    def regions(self, device: torch.device) -> Tensor:
        """Which part of the map, as the shift has cut it, a token is of: (windows, M)."""
        axes = []
        for count, size, shift in zip(self.counts, self.sizes, self.shifts):
            place = torch.arange(count * size, device=device)
            end = count * size
            axes.append(
                (place >= end - size).int() + (place >= end - shift).int() if shift else 0 * place
            )
        region = 3 * axes[0][:, None] + axes[1]  # [H, W]
        region = region.unflatten(1, (self.counts[1], -1)).unflatten(0, (self.counts[0], -1))
        return region.transpose(1, 2).flatten(2).flatten(0, 1)
