"""Softmax attention of each window with its neighbours and with global tokens, as in ViL."""

import torch
import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import Tensor

from .base import TokenMap
from .card import AttentionCard
from .softmax import SoftmaxAttention, softmax_attention
from .window import Windows


@MODELS.register_module()
class VisionLongformerAttention(SoftmaxAttention):
    """The attention of multi-scale vision longformer (Zhang et al., ICCV 2021): a token attends to
    the 3 x 3 windows around it and to the extra tokens, which attend to all; linear in the number
    of tokens.

    Windows beyond the map are masked, as in the released code ("blockwise sliding chunk with zero
    padding"); all tokens share one projection, its default.

    Args:
        embed_dims, num_heads: channels and heads.
        window_size: side of a window.
        attn_drop: dropout on the attention weights.
        others: see :class:`BaseAttention`.

    Raises:
        ValueError: a window size below 1, and those of :class:`BaseAttention`.

    Example:
        >>> attn = VisionLongformerAttention(embed_dims=32, num_heads=4, window_size=3)
        >>> attn(torch.randn(2, 1 + 10 * 12, 32), hw_shape=(10, 12), num_extra_tokens=1).shape
        torch.Size([2, 121, 32])
    """

    card = AttentionCard(
        formula='softmax(q_i . k_j/sqrt d) v_j over 3 x 3 windows of R x R tokens and extra tokens',
        time='O(N R^2 d)',
        memory='O(N d)',
        source='Zhang et al., ViL, ICCV 2021',
        use="ViL's own: released weights; what is far only through extra tokens",
        map=True,
    )
    host_options = (*SoftmaxAttention.host_options, 'window_size')

    def __init__(self, embed_dims: int, num_heads: int, window_size: int = 7, **kwargs) -> None:
        super().__init__(embed_dims, num_heads, **kwargs)
        if type(window_size) is not int or window_size < 1:
            raise ValueError(f'window_size must be a positive integer, got {window_size!r}')
        self.window_size = window_size

    def attend(self, q: Tensor, k: Tensor, v: Tensor, tokens: TokenMap) -> Tensor:
        mask, dropout = tokens.key_padding_mask, self.attn_drop if self.training else 0.0
        if mask is None:
            mask = torch.zeros_like(v[:, 0, :, 0], dtype=torch.bool)
        (q_extra, q_map), (k_extra, k_map), (v_extra, v_map) = (
            tokens.split(x, 2) for x in (q, k, v)
        )
        mask_extra, mask_map = tokens.split(mask)
        windows = Windows(tokens.hw_shape, self.window_size)
        visible = _around(~mask_map[:, None, :, None], windows).flatten(1)  # [B * n, 9 M]
        count = windows.counts[0] * windows.counts[1]

        def keys(of_map: Tensor, extra: Tensor) -> Tensor:
            extra = extra.repeat_interleave(count, 0)
            return torch.cat([extra, _around(of_map, windows)], 2)

        hidden = torch.cat([mask_extra.repeat_interleave(count, 0), ~visible], 1)
        q_map, k_map, v_map = windows.divide(q_map), keys(k_map, k_extra), keys(v_map, v_extra)
        out = windows.join(softmax_attention(q_map, k_map, v_map, hidden, dropout=dropout))
        if not tokens.num_extra_tokens:
            return out
        of_extra = softmax_attention(q_extra, k, v, tokens.key_padding_mask, dropout=dropout)
        return torch.cat([of_extra, out], 2)


def _around(x: Tensor, windows: Windows) -> Tensor:
    """(B, heads, N, d) to the tokens of 3 x 3 windows around each, (B * n, heads, 9 M, d); beyond
    the map they are 0."""
    x = windows.divide(x).unflatten(0, (-1, *windows.counts))  # [B, rows, columns, h, M, d]
    rows, columns = windows.counts
    x = F.pad(x, (0, 0) * 3 + (1, 1, 1, 1))
    near = [x[:, i : i + rows, j : j + columns] for i in range(3) for j in range(3)]
    return torch.cat(near, 4).flatten(0, 2)
