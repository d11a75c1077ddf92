"""Softmax attention of each window with its neighbours and with global tokens, as in ViL."""

from typing import Optional

import torch
import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import Tensor

from .attention_info import AttentionCard
from .base import TokenMap
from .relative_position_bias import RelativeBias
from .softmax import SoftmaxAttention, softmax_attention
from .window import Windows


@MODELS.register_module()
class VisionLongformerAttention(SoftmaxAttention):
    """The attention of multi-scale vision longformer (Zhang et al., ICCV 2021): a token attends to
    the 3 x 3 windows around it and to the extra tokens, which attend to all; linear in the number
    of tokens.

    Windows beyond the map are masked, as in the released code ("blockwise sliding chunk with zero
    padding"); all tokens share one projection, its default. The released training may drop
    all but one neighbour at random ("random shifting"), which is not here.

    Args:
        embed_dims, num_heads: channels and heads.
        window_size: side of a window.
        relative_bias: a learnt number for each head and relative position, added to the logits.
        num_extra_tokens: extra tokens with biases of their own, see :class:`RelativeBias`.
        attn_drop: dropout on the attention weights.
        others: see :class:`BaseAttention`.

    Raises:
        ValueError: a window size that is no positive integer, a number of extra tokens that is no
            integer of at least 0, and those of :class:`BaseAttention`.

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
    host_options = (
        *SoftmaxAttention.host_options, 'window_size', 'relative_bias', 'num_extra_tokens'
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
        if type(window_size) is not int or window_size < 1:
            raise ValueError(f'window_size must be a positive integer, got {window_size!r}')
        super().check_extra_tokens(num_extra_tokens)  # also where it is of no use
        self.window_size = window_size
        self.relative = None
        if relative_bias:
            reach = 2 * window_size - 1
            self.relative = RelativeBias(num_heads, (reach, reach), num_extra_tokens)

    def check_extra_tokens(self, num_extra_tokens: int) -> None:
        super().check_extra_tokens(num_extra_tokens)
        if self.relative is not None:
            self.relative.check_extra_tokens(num_extra_tokens)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, tokens: TokenMap) -> Tensor:
        mask, dropout = tokens.key_padding_mask, self.attn_drop if self.training else 0.0
        if mask is None:
            mask = torch.zeros_like(v[:, 0, :, 0], dtype=torch.bool)
        (q_extra, q_map), (k_extra, k_map), (v_extra, v_map) = (
            tokens.split(x, 2) for x in (q, k, v)
        )
        mask_extra, mask_map = tokens.split(mask)
        windows = Windows(tokens.hw_shape, self.window_size, owner=type(self).__name__)
        visible = _around(~mask_map[:, None, :, None], windows).flatten(1)  # [B * n, 9 M]
        count = windows.counts[0] * windows.counts[1]

        def beside(extra: Tensor, of_windows: Tensor, dim: int) -> Tensor:
            if not tokens.num_extra_tokens:  # ONNX's shapes of nothing repeated are wrong
                return of_windows
            return torch.cat([extra.repeat_interleave(count, 0), of_windows], dim)

        hidden = beside(mask_extra, ~visible, 1)
        k_map, v_map = (
            beside(extra, _around(of_map, windows), 2)
            for extra, of_map in ((k_extra, k_map), (v_extra, v_map))
        )
        q_map = windows.divide(q_map)
        bias = self._bias(windows, tokens.num_extra_tokens, q_map)
        out = softmax_attention(q_map, k_map, v_map, hidden, bias=bias, dropout=dropout)
        out = windows.join(out)
        if not tokens.num_extra_tokens:
            return out
        if self.relative is not None:
            count = k.shape[2] - tokens.num_extra_tokens
            bias = self.relative.from_extra(tokens.num_extra_tokens, count)[None].to(q.dtype)
        of_extra = softmax_attention(
            q_extra, k, v, tokens.key_padding_mask, bias=bias, dropout=dropout
        )
        return torch.cat([of_extra, out], 2)

    def _bias(self, windows: Windows, num_extra: int, q: Tensor) -> Optional[Tensor]:
        """(1, heads, M, E + 9 M), what is added to the logits of each window, or None."""
        if self.relative is None:
            return None
        apart = []
        for size in windows.sizes:
            place = torch.arange(-size, 2 * size, device=q.device)  # of keys
            apart.append(place[size : 2 * size, None] - place)
        near = self.relative.of_map(*apart)  # [h, a, b, 3 a, 3 b]
        near = near.unflatten(4, (3, -1)).unflatten(3, (3, -1)).transpose(4, 5)
        near = near.flatten(3).flatten(1, 2)  # [h, M, 9 M], the keys window by window
        extra = self.relative.to_extra(num_extra).expand(-1, near.shape[1], -1)
        return torch.cat([extra, near], 2)[None].to(q.dtype)


def _around(x: Tensor, windows: Windows) -> Tensor:
    """(B, heads, N, d) to the tokens of 3 x 3 windows around each, (B * n, heads, 9 M, d); beyond
    the map they are 0."""
    x = windows.divide(x).unflatten(0, (-1, *windows.counts))  # [B, rows, columns, h, M, d]
    rows, columns = windows.counts
    x = F.pad(x, (0, 0) * 3 + (1, 1, 1, 1))
    near = [x[:, i : i + rows, j : j + columns] for i in range(3) for j in range(3)]
    return torch.cat(near, 4).flatten(0, 2)
