"""Random walk graph kernel attention: learnt (RWGKA), pooled (RWGKP) or no anchors (Slinear)."""

from typing import Optional, Tuple

import torch
import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import Tensor, nn

from ...ops import random_walk_attention
from ...ops.common.numerics import is_static
from ...ops.random_walk import check_walk
from ...utils import check_integer
from .base import BaseAttention, TokenLayout
from .pooling import axis_weights, pool_tokens, pool_tokens_dynamic, pooling_grid


class RandomWalkAttention(BaseAttention):
    """Base class of random walk attention. A subclass implements :meth:`anchors`.

    Args:
        decay: l in (0, 1), weight of each further step of the walk, without ``steps`` at most
            0.999; 0.1 is best in table 5.
        steps: None for walks of unlimited length, 1 for softmax-linear attention, n for walks of
            at most n steps.
        heads_multiplier: factor on the number of heads of the backbone (table 5).
        embed_dims, num_heads, kwargs: options of :class:`BaseAttention`.

    Raises:
        ValueError: ``heads_multiplier`` or ``steps`` is below 1, ``decay`` is outside (0, 1).
    """

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        decay: float = 0.1,
        steps: Optional[int] = None,
        heads_multiplier: int = 1,
        **kwargs,
    ) -> None:
        num_heads = check_integer('num_heads', num_heads)
        num_heads *= check_integer('heads_multiplier', heads_multiplier)
        if heads_multiplier > 1 and check_integer('embed_dims', embed_dims) % num_heads:
            raise ValueError(
                f'embed_dims={embed_dims} must be a multiple of {num_heads}, the number of heads '
                f'with {heads_multiplier=}'
            )
        super().__init__(embed_dims, num_heads, **kwargs)
        check_walk(decay, steps)
        self.decay = decay
        self.steps = steps

    def anchors(self, q: Tensor, k: Tensor, layout: TokenLayout) -> Tuple[Tensor, Tensor]:
        """Return the anchors B_Q and B_K, (heads, M, d) or (B, heads, M, d)."""
        raise NotImplementedError

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: TokenLayout) -> Tensor:
        return self.attend_with_anchors(q, k, v, *self.anchors(q, k, layout), layout)

    def attend_with_anchors(
        self, q: Tensor, k: Tensor, v: Tensor, b_q: Tensor, b_k: Tensor, layout: TokenLayout
    ) -> Tensor:
        """Compute the attention from anchors, see :meth:`anchors`."""
        return random_walk_attention(
            q, k, v, b_q, b_k, decay=self.decay, steps=self.steps,
            key_padding_mask=layout.key_padding_mask, cross=layout.cross, backend=self.backend,
        )  # fmt: skip


@MODELS.register_module()
class RWGKA(RandomWalkAttention):
    """Random walk graph kernel attention with learnt anchors ("Improving Vision Attention with
    Random Walk Graph Kernel"), linear in the number of tokens.

    Args:
        num_anchors: anchors M per head, which are both B_Q and B_K, as the paper's parameter
            counts imply.
        args, kwargs: options of :class:`RandomWalkAttention`.

    Raises:
        ValueError: ``num_anchors`` is not a positive integer.

    Example:
        >>> attn = RWGKA(embed_dims=64, num_heads=2, num_anchors=16)
        >>> attn(torch.randn(2, 12 * 20, 64), hw_shape=(12, 20)).shape
        torch.Size([2, 240, 64])
    """

    cross_values = 'keys'

    def __init__(
        self, embed_dims: int, num_heads: int, num_anchors: int = 64, *args, **kwargs
    ) -> None:
        super().__init__(embed_dims, num_heads, *args, **kwargs)
        self.num_anchors = check_integer('num_anchors', num_anchors)
        anchors = torch.empty(self.num_heads, self.num_anchors, self.head_dim)
        for head in anchors:
            nn.init.xavier_uniform_(head)
        self.anchors_q = nn.Parameter(anchors)

    def anchors(self, q: Tensor, k: Tensor, layout: TokenLayout) -> Tuple[Tensor, Tensor]:
        return self.anchors_q, self.anchors_q


@MODELS.register_module()
class RWGKP(RandomWalkAttention):
    """Random walk graph kernel attention with anchors pooled from queries and keys.

    It adds no parameters. The map is averaged over a grid of at most ``num_anchors`` cells with
    about the aspect ratio of the map. A map with fewer rows or columns than the grid has one cell
    per row or column. Padded tokens are excluded from the averages; a cell of padding only gives
    an anchor 0, which weights all tokens equally. Extra tokens (such as a class token) belong to
    no cell, but attend to the anchors, and the anchors to them, like map tokens.

    Args:
        num_anchors: largest number of anchors M.
        args, kwargs: options of :class:`RandomWalkAttention`.

    Raises:
        ValueError: ``num_anchors`` is not a positive integer.

    Example:
        >>> attn = RWGKP(embed_dims=64, num_heads=2, num_anchors=16)
        >>> attn(torch.randn(2, 12 * 20, 64), hw_shape=(12, 20)).shape
        torch.Size([2, 240, 64])
    """

    needs_map = True

    def __init__(
        self, embed_dims: int, num_heads: int, num_anchors: int = 64, *args, **kwargs
    ) -> None:
        super().__init__(embed_dims, num_heads, *args, **kwargs)
        self.num_anchors = check_integer('num_anchors', num_anchors)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: TokenLayout) -> Tensor:
        if is_static(*layout.hw_shape):
            return super().attend(q, k, v, layout)
        # An extra channel, 1 in queries and 0 in keys, masks the anchors that do not exist.
        map_layout = layout.without_extra_tokens()
        (anchors_q, _), (anchors_k, exists) = (
            pool_tokens_dynamic(self.num_anchors, layout.split_extra(x, 2)[1], map_layout)
            for x in (q, k)
        )
        masked = (~exists)[:, None].to(q.dtype) * (torch.finfo(q.dtype).min / 2)  # [M, 1]
        k, anchors_q, anchors_k = (F.pad(x, (0, 1)) for x in (k, anchors_q, anchors_k))
        q, anchors_k = F.pad(q, (0, 1), value=1.0), anchors_k + F.pad(masked, (self.head_dim, 0))
        return self.attend_with_anchors(q, k, v, anchors_q, anchors_k, layout)

    def anchors(self, q: Tensor, k: Tensor, layout: TokenLayout) -> Tuple[Tensor, Tensor]:
        grid = pooling_grid(self.num_anchors, layout.hw_shape)
        rows = axis_weights(grid[0], layout.hw_shape[0], q)
        columns = axis_weights(grid[1], layout.hw_shape[1], q)
        map_layout = layout
        if layout.num_extra_tokens:
            map_layout = layout.without_extra_tokens()
            q, k = layout.split_extra(q, 2)[1], layout.split_extra(k, 2)[1]
        return pool_tokens(q, map_layout, rows, columns), pool_tokens(k, map_layout, rows, columns)


@MODELS.register_module()
class SlinearAttention(RandomWalkAttention):
    """Softmax-linear attention (Slinear) of "Improving Vision Attention with Random Walk Graph
    Kernel", linear in the number of tokens, without anchors::

        A = softmax_channels(Q) softmax_tokens(K)^T,    out = A v

    It is the paper's baseline of one step; further steps walk on the graph of A (figure 3)::

        out = (1 - l) / (1 - l^n) sum_{i=1..n} l^(i-1) A^i v

    The channels take the place of the anchors: one step equals :class:`EfficientAttention`.

    Args:
        steps: number of steps n, or None for walks of unlimited length.
        kwargs: options of :class:`RandomWalkAttention`.

    Example:
        >>> attn = SlinearAttention(embed_dims=64, num_heads=2, steps=2)
        >>> attn(torch.randn(2, 12 * 20, 64), hw_shape=(12, 20)).shape
        torch.Size([2, 240, 64])
    """

    def __init__(self, embed_dims: int, num_heads: int, steps: Optional[int] = 1, **kwargs) -> None:
        super().__init__(embed_dims, num_heads, steps=steps, **kwargs)

    def anchors(self, q: Tensor, k: Tensor, layout: TokenLayout) -> Tuple[Tensor, Tensor]:
        channels = torch.eye(self.head_dim, dtype=q.dtype, device=q.device)
        channels = channels.expand(self.num_heads, -1, -1)
        return channels, channels
