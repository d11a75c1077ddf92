"""Ripple attention as a layer."""

from typing import Optional, Union

import torch
import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import Tensor, nn

from ...ops import ripple_attention, stick_breaking
from ...ops.ripple import check_backend, check_threshold
from .attention_info import AttentionCard
from .base import BaseAttention, TokenMap
from .feature_maps import build_feature_map

WEIGHTS = ('stick', 'fixed', 'softmax', 'truncated')


@MODELS.register_module()
class RippleAttention(BaseAttention):
    """Linear attention with learnt weights for rings of distance (Zheng et al., "Ripple
    Attention for Visual Perception with Sub-quadratic Complexity", ICML 2022).

    Each head and position has its own weights: a linear layer of its value, shared by the heads,
    times one embedding for each head and stick unit gives the logits. Defaults are the paper's;
    the options are the rows of its table 4.

    The paper's models have no class token. Here an extra token is in no ring: as a key it belongs
    to the last group of every token of the map; as a query it reads all tokens alike, which is
    plain linear attention.

    Args:
        embed_dims, num_heads: channels and heads.
        max_distance: R; the last weight is for all tokens at distance R and more. 0 is plain
            linear attention; one larger than the map is allowed.
        weights: ``'stick'`` (stick breaking), ``'fixed'`` (1/2, 1/4, ...; the rest for the last),
            ``'softmax'`` ("w/o stick breaking") or ``'truncated'`` (stick breaking without the
            last weight: local attention).
        groups: ``'chebyshev'`` or ``'log'``: logarithmic distances.
        stick_offset: logits of 0 break equal parts; False breaks halves of what is left.
        threshold: groups share what is left of the stick once it is shorter, see
            :func:`mmlinattn.ops.stick_breaking`. The paper's is 0.001, its saving that of a
            kernel of its own: here it saves nothing, so it is off.
        feature_map: see :class:`LinearAttention`.
        eps: added to the normaliser.
        others: see :class:`BaseAttention`; ``backend`` may also be ``'tile'`` or ``'sat'``, see
            :func:`mmlinattn.ops.ripple_attention`. Rotary position turns queries and keys before
            the feature map.

    Raises:
        ValueError: a max_distance that is not an integer of at least 0, another unknown option
            value, or those of :class:`BaseAttention`.

    Example:
        >>> import torch
        >>> attn = RippleAttention(embed_dims=64, num_heads=2, max_distance=3)
        >>> attn(torch.randn(2, 12 * 20, 64), hw_shape=(12, 20)).shape
        torch.Size([2, 240, 64])
    """

    card = AttentionCard(
        formula='linear attention, weight w_g(i) for the keys of ring g around the query',
        time='O(N R^2 d)',
        memory='O(N d)',
        source='Zheng et al., ICML 2022',
        use='to learn how far each token looks: R rings, here by tiles',
        map=True,
    )

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
        if type(max_distance) is not int or max_distance < 0:
            raise ValueError(f'max_distance must be an integer of at least 0, got {max_distance!r}')
        if weights not in WEIGHTS:
            raise ValueError(f'weights must be one of {WEIGHTS}, got {weights!r}')
        if weights == 'truncated' and not max_distance:
            raise ValueError("weights='truncated' attend within max_distance, which must not be 0")
        check_threshold(threshold)
        check_backend(self.backend, groups)
        self.max_distance = max_distance
        self.weights = weights
        self.groups = groups
        self.stick_offset = stick_offset
        self.threshold = threshold
        self.eps = eps
        self.feature_map = build_feature_map(feature_map, self.head_dim, num_heads)
        if weights == 'fixed':
            halves = 0.5 ** torch.arange(1, max_distance + 2)
            halves[-1] = 0.5**max_distance
            self.register_buffer('fixed_weights', halves, persistent=False)
        else:
            num_units = max_distance + (weights == 'softmax')
            self.weight_proj = nn.Linear(self.head_dim, self.head_dim)
            self.units = nn.Parameter(torch.empty(num_heads, num_units, self.head_dim))
            nn.init.trunc_normal_(self.units, std=0.02)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, tokens: TokenMap) -> Tensor:
        q, k = self.feature_map(q, k, tokens.key_padding_mask)
        if tokens.num_extra_tokens:
            return self._with_extra_tokens(q, k, v, tokens)
        stick = None
        if self.weights == 'stick' and self.threshold is None:
            stick = 'offset' if self.stick_offset else 'plain'
        weights = self.spatial_weights(v) if stick is None else self.logits(v)
        return self._ripple(q, k, v, weights, tokens, stick)

    def _ripple(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        weights: Tensor,
        tokens: TokenMap,
        stick: Optional[str] = None,
    ) -> Tensor:
        out = ripple_attention(
            q,
            k,
            v.to(q.dtype),
            weights,
            hw_shape=tokens.hw_shape,
            groups=self.groups,
            stick=stick,
            key_padding_mask=tokens.key_padding_mask,
            eps=self.eps,
            backend=self.backend,
        )
        return out.to(v.dtype)

    def _with_extra_tokens(self, q: Tensor, k: Tensor, v: Tensor, tokens: TokenMap) -> Tensor:
        """Extra tokens on rows of their own below the map, as far away as the last group begins;
        the rows between, and what is left of the last row, are padding."""
        extra = tokens.num_extra_tokens
        height, width = tokens.hw_shape
        reach = self.max_distance
        if self.groups == 'log' and reach:
            reach = 2 ** (reach - 1)
        blank, rows = max(reach - 1, 0), (extra + width - 1) // width
        around = (blank * width, rows * width - extra)

        def below(x: Tensor, dim: int, value: float = 0) -> Tensor:
            head, body = tokens.split(x, dim)
            head = F.pad(head, (*(0, 0) * (x.dim() - 1 - dim), *around), value=value)
            return torch.cat([body, head], dim)

        mask = tokens.key_padding_mask
        if mask is None:
            mask = torch.zeros_like(v[:, 0, :, 0], dtype=torch.bool)
        taller = TokenMap((height + blank + rows, width), below(mask, 1, True))
        weights = self.spatial_weights(tokens.split(v, 2)[1])
        # Equal weights: to an extra query no token is near.
        weights = F.pad(weights, (0, 0, 0, (blank + rows) * width), value=1.0)
        out = self._ripple(below(q, 2), below(k, 2), below(v, 2), weights, taller)
        start = (height + blank) * width
        return torch.cat([out[:, :, start : start + extra], out[:, :, : height * width]], 2)

    def spatial_weights(self, v: Tensor) -> Tensor:
        """Weights of the groups for values (B, heads, N, d): (B, heads, N, R + 1)."""
        if self.weights == 'fixed':
            return self.fixed_weights.expand(*v.shape[:3], -1)
        if self.weights == 'softmax':
            return self.logits(v).softmax(-1)
        weights = stick_breaking(self.logits(v), offset=self.stick_offset, threshold=self.threshold)
        return weights if self.weights == 'stick' else F.pad(weights[..., :-1], (0, 1))

    def logits(self, v: Tensor) -> Tensor:
        """What learnt weights are made of, (B, heads, N, R), one more with ``'softmax'``."""
        return self.weight_proj(v) @ self.units.transpose(-2, -1)
