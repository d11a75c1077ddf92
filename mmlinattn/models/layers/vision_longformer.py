"""Sliding-window attention with global tokens, as in ViL."""

from typing import Optional

import torch
import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import Tensor

from ...utils import check_integer
from .relative_position_bias import RelativePositionBias
from .softmax import SoftmaxAttention, softmax_attention
from .token_layout import TokenLayout
from .window import WindowPartition


@MODELS.register_module()
class VisionLongformerAttention(SoftmaxAttention):
    """Attention of multi-scale vision longformer (Zhang et al., ICCV 2021), linear in the number
    of tokens.

    A token attends to the 3 x 3 windows around it and to the extra tokens (such as a class token).
    Extra tokens attend to all tokens. Windows beyond the map are masked, as in the released code
    ("blockwise sliding chunk with zero padding"). All tokens share one projection, the default of
    the release. "Random shifting" of the released training, which drops all but one neighbour at
    random, is not implemented.

    Args:
        window_size: side of a window.
        relative_bias: add a learnt bias per head and relative position to the logits.
        num_extra_tokens: number of extra tokens with a bias, see :class:`RelativePositionBias`.
        embed_dims, num_heads, kwargs: options of :class:`SoftmaxAttention`.

    Raises:
        ValueError: ``window_size`` is not a positive integer, ``num_extra_tokens`` is not an
            integer of at least 0.

    Example:
        >>> attn = VisionLongformerAttention(embed_dims=32, num_heads=4, window_size=3)
        >>> attn(torch.randn(2, 1 + 10 * 12, 32), hw_shape=(10, 12), num_extra_tokens=1).shape
        torch.Size([2, 121, 32])
    """

    needs_map = True
    any_export_size = False
    cross_values = None
    backbone_options = (
        *SoftmaxAttention.backbone_options, 'window_size', 'relative_bias', 'num_extra_tokens'
    )  # fmt: skip

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        window_size: int = 7,
        relative_bias: bool = False,
        num_extra_tokens: int = 0,
        **kwargs,
    ) -> None:
        super().__init__(embed_dims, num_heads, **kwargs)
        super().check_extra_tokens(num_extra_tokens)  # also without a relative bias
        self.window_size = check_integer('window_size', window_size)
        self.relative = None
        if relative_bias:
            reach = 2 * window_size - 1
            self.relative = RelativePositionBias(num_heads, (reach, reach), num_extra_tokens)

    def check_extra_tokens(self, num_extra_tokens: int) -> None:
        super().check_extra_tokens(num_extra_tokens)
        if self.relative is not None:
            self.relative.check_extra_tokens(num_extra_tokens)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: TokenLayout) -> Tensor:
        mask, dropout = layout.key_padding_mask, self.attn_drop if self.training else 0.0
        if mask is None:
            mask = torch.zeros_like(v[:, 0, :, 0], dtype=torch.bool)
        (q_extra, q_map), (k_extra, k_map), (v_extra, v_map) = (
            layout.split_extra(x, 2) for x in (q, k, v)
        )
        mask_extra, mask_map = layout.split_extra(mask)
        windows = WindowPartition(layout.hw_shape, self.window_size, owner=type(self).__name__)
        # [B * n, 9 M]
        visible = _gather_neighbours(~mask_map[:, None, :, None], windows).flatten(1)
        count = windows.counts[0] * windows.counts[1]

        def prepend_extra(extra: Tensor, x: Tensor, dim: int) -> Tensor:
            if not layout.num_extra_tokens:  # ONNX infers wrong shapes for repeats of no token
                return x
            return torch.cat([extra.repeat_interleave(count, 0), x], dim)

        window_mask = prepend_extra(mask_extra, ~visible, 1)
        k_map, v_map = (
            prepend_extra(extra, _gather_neighbours(x, windows), 2)
            for extra, x in ((k_extra, k_map), (v_extra, v_map))
        )
        q_map = windows.partition(q_map)
        bias = self._bias(windows, layout.num_extra_tokens, q_map)
        out = softmax_attention(q_map, k_map, v_map, window_mask, bias=bias, dropout=dropout)
        out = windows.reverse(out)
        if not layout.num_extra_tokens:
            return out
        if self.relative is not None:
            count = k.shape[2] - layout.num_extra_tokens
            bias = self.relative.extra_query_bias(layout.num_extra_tokens, count)[None].to(q.dtype)
        mask = layout.key_padding_mask
        out_extra = softmax_attention(q_extra, k, v, mask, bias=bias, dropout=dropout)
        return torch.cat([out_extra, out], 2)

    def _bias(self, windows: WindowPartition, num_extra: int, q: Tensor) -> Optional[Tensor]:
        """Return the bias of the logits of each window, (1, heads, M, E + 9 M), or None."""
        if self.relative is None:
            return None
        offsets = []
        for size in windows.sizes:
            key_coords = torch.arange(-size, 2 * size, device=q.device)
            offsets.append(key_coords[size : 2 * size, None] - key_coords)
        bias = self.relative.map_bias(*offsets)  # [h, a, b, 3 a, 3 b]
        bias = bias.unflatten(4, (3, -1)).unflatten(3, (3, -1)).transpose(4, 5)
        bias = bias.flatten(3).flatten(1, 2)  # [h, M, 9 M], keys in the order of windows
        extra = self.relative.extra_key_bias(num_extra).expand(-1, bias.shape[1], -1)
        return torch.cat([extra, bias], 2)[None].to(q.dtype)


def _gather_neighbours(x: Tensor, windows: WindowPartition) -> Tensor:
    """Gather the 3 x 3 windows around each window, (B * n, heads, 9 M, d), 0 beyond the map."""
    x = windows.partition(x).unflatten(0, (-1, *windows.counts))  # [B, rows, columns, h, M, d]
    rows, columns = windows.counts
    x = F.pad(x, (0, 0) * 3 + (1, 1, 1, 1))
    neighbours = [x[:, i : i + rows, j : j + columns] for i in range(3) for j in range(3)]
    return torch.cat(neighbours, 4).flatten(0, 2)
