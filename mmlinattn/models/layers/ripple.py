"""Ripple attention as a layer."""

from typing import Optional, Union

import torch
import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import Tensor, nn

from ...ops import ripple_attention, stick_breaking
from ...ops.common.numerics import constant
from ...ops.ripple import check_groups, check_threshold, fixed_weights
from ...utils import check_integer, check_number
from .base import BaseAttention, TokenLayout
from .feature_maps import build_feature_map

WEIGHTS = ('stick', 'fixed', 'softmax', 'truncated')


@MODELS.register_module()
class RippleAttention(BaseAttention):
    """Linear attention with learnt weights for rings of distance, "Ripple Attention for Visual
    Perception with Sub-quadratic Complexity" (Zheng et al., ICML 2022).

    Each head and position has separate weights. The logits are the product of a linear layer of
    the value, shared by the heads, and an embedding per head and stick unit. Defaults are those of
    the paper; the options are the rows of its table 4.

    The models of the paper have no class token. Here an extra token (class token, registers) is
    in no ring. As a key it belongs to the last group of every map token. As a query it weights all
    tokens equally, as in linear attention.

    Args:
        max_distance: R; the last weight applies to all tokens at distance R or more. 0 gives linear
            attention. It may exceed the size of the map.
        weights: ``'stick'`` (stick breaking), ``'fixed'`` (1/2, 1/4, ...; the rest for the last),
            ``'softmax'`` ("w/o stick breaking") or ``'truncated'`` (stick breaking without the
            last weight: local attention).
        groups: ``'chebyshev'`` or ``'log'`` (logarithmic distances).
        stick_offset: logits of 0 break equal parts; False breaks half of the rest each time. As
            ``threshold``, without effect on ``'fixed'`` and ``'softmax'``.
        threshold: once the rest of the stick is shorter, the remaining groups share it, see
            :func:`mmlinattn.ops.stick_breaking`. The paper's tau is 0.001, which its configs set.
            It saves no time here; None, the default, breaks the whole stick.
        feature_map: see :class:`LinearAttention`.
        eps: added to the normaliser.
        embed_dims, num_heads, kwargs: options of :class:`BaseAttention`; ``backend`` may also be
            ``'tile'`` or ``'sat'`` of :func:`mmlinattn.ops.ripple_attention`. ``rotary`` applies
            before the feature map.

    Raises:
        ValueError: ``max_distance`` is not an integer of at least 0, or another option has an
            unknown value.

    Example:
        >>> attn = RippleAttention(embed_dims=64, num_heads=2, max_distance=3)
        >>> attn(torch.randn(2, 12 * 20, 64), hw_shape=(12, 20)).shape
        torch.Size([2, 240, 64])
    """

    needs_map = True
    backends = (*BaseAttention.backends, 'tile', 'sat')

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        max_distance: int = 4,
        weights: str = 'stick',
        groups: str = 'chebyshev',
        stick_offset: bool = True,
        threshold: Optional[float] = None,
        feature_map: Union[str, dict] = 'AdaptiveFeatures',
        eps: float = 1e-6,
        **kwargs,
    ) -> None:
        super().__init__(embed_dims, num_heads, **kwargs)
        max_distance = check_integer('max_distance', max_distance, least=0)
        if weights not in WEIGHTS:
            raise ValueError(f'weights must be one of {WEIGHTS}, got {weights!r}')
        if weights == 'truncated' and not max_distance:
            raise ValueError("weights='truncated' needs a max_distance of at least 1, got 0")
        check_threshold(threshold)
        check_groups(groups, self.backend)
        self.max_distance, self.weights, self.groups = max_distance, weights, groups
        self.stick_offset, self.threshold = stick_offset, threshold
        self.eps = check_number('eps', eps)
        self.feature_map = build_feature_map(feature_map, self.head_dim, num_heads)
        if weights != 'fixed':
            num_units = max_distance + (weights == 'softmax')
            self.weight_proj = nn.Linear(self.head_dim, self.head_dim)
            self.units = nn.Parameter(torch.empty(num_heads, num_units, self.head_dim))
            nn.init.trunc_normal_(self.units, std=0.02)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: TokenLayout) -> Tensor:
        q, k = self.feature_map(q, k, layout.key_padding_mask)
        if layout.num_extra_tokens:
            return self._with_extra_tokens(q, k, v, layout)
        return self._ripple(q, k, v, self.spatial_weights(v), layout)

    def _ripple(
        self, q: Tensor, k: Tensor, v: Tensor, weights: Tensor, layout: TokenLayout
    ) -> Tensor:
        out = ripple_attention(
            q, k, v.to(q.dtype), weights, hw_shape=layout.hw_shape, groups=self.groups,
            key_padding_mask=layout.key_padding_mask, eps=self.eps, backend=self.backend,
        )  # fmt: skip
        return out.to(v.dtype)

    def _with_extra_tokens(self, q: Tensor, k: Tensor, v: Tensor, layout: TokenLayout) -> Tensor:
        """Compute the attention on a taller map whose last rows hold the extra tokens.

        The distance to these rows is at least that of the last group. The rows in between and the
        rest of the last row are padding.
        """
        extra = layout.num_extra_tokens
        height, width = layout.hw_shape
        reach = self.max_distance
        if self.groups == 'log' and reach:
            reach = 2 ** (reach - 1)
        blank, rows = max(reach - 1, 0), (extra + width - 1) // width
        padding = (blank * width, rows * width - extra)

        def move_below(x: Tensor, dim: int, value: float = 0) -> Tensor:
            extra_tokens, map_tokens = layout.split_extra(x, dim)
            pad = (*(0, 0) * (x.dim() - 1 - dim), *padding)
            return torch.cat([map_tokens, F.pad(extra_tokens, pad, value=value)], dim)

        mask = layout.key_padding_mask
        if mask is None:
            mask = torch.zeros_like(v[:, 0, :, 0], dtype=torch.bool)
        taller = TokenLayout((height + blank + rows, width), move_below(mask, 1, True))
        weights = self.spatial_weights(layout.split_extra(v, 2)[1])
        # An extra query has equal weights for all distances.
        weights = F.pad(weights, (0, 0, 0, (blank + rows) * width), value=1.0)
        out = self._ripple(move_below(q, 2), move_below(k, 2), move_below(v, 2), weights, taller)
        start = (height + blank) * width
        return torch.cat([out[:, :, start : start + extra], out[:, :, : height * width]], 2)

    def spatial_weights(self, v: Tensor) -> Tensor:
        """Return the weights of the groups, (B, heads, N, R + 1), for values (B, heads, N, d)."""
        if self.weights == 'fixed':
            weights = constant(fixed_weights, v.device, self.max_distance)
            return weights.expand(*v.shape[:3], -1)
        if self.weights == 'softmax':
            return self.logits(v).softmax(-1)
        weights = stick_breaking(self.logits(v), offset=self.stick_offset, threshold=self.threshold)
        return weights if self.weights == 'stick' else F.pad(weights[..., :-1], (0, 1))

    def logits(self, v: Tensor) -> Tensor:
        """Return the logits of learnt weights, (B, heads, N, R), or R + 1 with ``'softmax'``."""
        return self.weight_proj(v) @ self.units.transpose(-2, -1)
