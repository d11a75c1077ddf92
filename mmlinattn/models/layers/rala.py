"""Rank-augmented linear attention (RALA) as a layer."""

from typing import Optional

import torch
from mmengine.registry import MODELS
from torch import Tensor, nn

from ...ops import rala_attention
from ...ops.common.feature_maps import feature_map as get_feature_map
from ...utils import check_integer, check_number
from ...utils.errors import InputError
from .base import BaseAttention, TokenLayout
from .token_layout import require_static_size

AUGMENTATIONS = ('score', 'learnable', None)


@MODELS.register_module()
class RALA(BaseAttention):
    """Rank-augmented linear attention (Fan et al., "Breaking the Low-Rank Dilemma of Linear
    Attention", CVPR 2025): linear in the number of tokens.

    Defaults are those of the paper; the options are the rows of its tables 9 and 10.

    Args:
        feature_map: ``'elu+1'``, ``'relu'`` or ``'softmax'``.
        kv_augmentation: weights of the key-value pairs: ``'score'`` (similarity with the mean
            query), ``'learnable'`` (one weight per head and position; needs ``num_tokens``) or
            ``None`` (all 1, "w/o KV aug").
        num_tokens: number of tokens for ``'learnable'``, including extra tokens (class token).
        eps: added to the normaliser.
        embed_dims, num_heads, rotary, lepe, gate, kwargs: options of :class:`BaseAttention`;
            ``gate=None`` is "w/o out aug".

    Raises:
        ValueError: an option value is unknown.
        mmlinattn.utils.errors.InputError: the map has other than ``num_tokens`` tokens.

    Example:
        >>> attn = RALA(embed_dims=64, num_heads=2)
        >>> attn(torch.randn(2, 12 * 20, 64), hw_shape=(12, 20)).shape
        torch.Size([2, 240, 64])
    """

    needs_map = True
    cross_values = 'keys'
    applies_rotary = True  # the operator rotates features, in the numerator only

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        rotary: bool = True,
        lepe: int = 5,
        gate: Optional[str] = 'proj',
        feature_map: str = 'elu+1',
        kv_augmentation: Optional[str] = 'score',
        num_tokens: Optional[int] = None,
        eps: float = 1e-6,
        **kwargs,
    ) -> None:
        super().__init__(embed_dims, num_heads, rotary=rotary, lepe=lepe, gate=gate, **kwargs)
        get_feature_map(feature_map)
        if kv_augmentation not in AUGMENTATIONS:
            raise ValueError(
                f'kv_augmentation must be one of {AUGMENTATIONS}, got {kv_augmentation!r}'
            )
        if (kv_augmentation == 'learnable') != (num_tokens is not None):
            raise ValueError(
                "set num_tokens with kv_augmentation='learnable', and only then; got "
                f'num_tokens={num_tokens} with kv_augmentation={kv_augmentation!r}'
            )
        self.feature_map = feature_map
        self.kv_augmentation = kv_augmentation
        self.eps = check_number('eps', eps)
        self.token_logits = None
        if num_tokens is not None:
            num_tokens = check_integer('num_tokens', num_tokens)
            self.token_logits = nn.Parameter(torch.zeros(num_heads, num_tokens))

    def attends_packed(self) -> bool:
        return self.token_logits is None

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: TokenLayout) -> Tensor:
        return rala_attention(
            q, k, v, rotary=layout.rotary, key_padding_mask=layout.key_padding_mask, eps=self.eps,
            feature_map=self.feature_map, token_weights=self.token_weights(k, layout),
            cross=layout.cross, packed=layout.packed, backend=self.backend,
        )  # fmt: skip

    def token_weights(self, k: Tensor, layout: TokenLayout) -> Optional[Tensor]:
        """Return weights of mean 1, (heads, N) or (1, 1, 1), or None with ``'score'``."""
        if self.token_logits is None:
            return None if self.kv_augmentation == 'score' else k.new_ones(1, 1, 1)
        require_static_size(
            "RALA with kv_augmentation='learnable'", layout.hw_shape, 'it has a weight per position'
        )
        num_tokens = self.token_logits.shape[-1]
        if k.shape[2] != num_tokens:
            raise InputError(
                f"RALA with kv_augmentation='learnable' was built for num_tokens={num_tokens}, a "
                f'map has {k.shape[2]}: train and test with images of one size, and set num_tokens '
                'of each stage to its map'
            )
        return num_tokens * self.token_logits.softmax(-1)
