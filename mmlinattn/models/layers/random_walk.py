"""Random walk graph kernel attention: learnt anchors (RWGKA) or pooled ones (RWGKP)."""

from typing import Optional, Tuple

import torch
import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import Tensor, nn

from ...ops import random_walk_attention
from ...ops.anchors import check_walk
from ...ops.common.numerics import is_static
from .attention_info import AttentionCard
from .base import BaseAttention, TokenMap
from .pooling import bins, pool_grid_of_any_map, pool_tokens, pooling_grid


class RandomWalkAttention(BaseAttention):
    """What both kinds share; a subclass says where the anchors come from.

    Args:
        embed_dims, num_heads: channels and heads.
        num_anchors: anchors M of each head.
        decay: l in (0, 1), what a further step of the walk counts; 0.1 is best in table 5.
        steps: None for walks of any length, 1 for plain softmax-linear attention, n for at most n.
        heads_multiplier: multiplies the heads that the host gives (table 5).
        solver: see :func:`mmlinattn.ops.random_walk_attention`.
        others: see :class:`BaseAttention`.

    Raises:
        ValueError: num_anchors or heads_multiplier below 1, a decay outside (0, 1), steps below
            1, an unknown solver, and those of :class:`BaseAttention`.
    """

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        num_anchors: int = 64,
        decay: float = 0.1,
        steps: Optional[int] = None,
        heads_multiplier: int = 1,
        solver: str = 'series',
        **kwargs,
    ) -> None:
        if heads_multiplier < 1:
            raise ValueError(f'heads_multiplier must be at least 1, got {heads_multiplier}')
        super().__init__(embed_dims, num_heads * heads_multiplier, **kwargs)
        if num_anchors < 1:
            raise ValueError(f'num_anchors must be at least 1, got {num_anchors}')
        check_walk(decay, steps, solver)
        self.num_anchors = num_anchors
        self.decay = decay
        self.steps = steps
        self.solver = solver

    def anchors(self, q: Tensor, k: Tensor, tokens: TokenMap) -> Tuple[Tensor, Tensor]:
        """B_Q and B_K, each (heads, M, d) or (B, heads, M, d), for q, k (B, heads, N, d)."""
        raise NotImplementedError

    def attend(self, q: Tensor, k: Tensor, v: Tensor, tokens: TokenMap) -> Tensor:
        return self.walk(q, k, v, *self.anchors(q, k, tokens), tokens)

    def walk(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        anchors_q: Tensor,
        anchors_k: Tensor,
        tokens: TokenMap,
    ) -> Tensor:
        """The attention with given anchors, see :meth:`anchors`."""
        return random_walk_attention(
            q,
            k,
            v,
            anchors_q,
            anchors_k,
            decay=self.decay,
            steps=self.steps,
            solver=self.solver,
            key_padding_mask=tokens.key_padding_mask,
            backend=self.backend,
        )


@MODELS.register_module()
class RWGKA(RandomWalkAttention):
    """Random walk graph kernel attention with learnt anchors ("Improving Vision Attention with
    Random Walk Graph Kernel"): linear in the number of tokens.

    Args:
        embed_dims, num_heads, num_anchors, decay, steps, heads_multiplier, solver: see
            :class:`RandomWalkAttention`.
        shared_anchors: one set of anchors reads the tokens and is looked up, as the paper's
            parameter counts say; False gives each its own.
        others: see :class:`BaseAttention`.

    Raises:
        ValueError: see :class:`RandomWalkAttention`.

    Example:
        >>> import torch
        >>> attn = RWGKA(embed_dims=64, num_heads=2, num_anchors=16)
        >>> attn(torch.randn(2, 12 * 20, 64), hw_shape=(12, 20)).shape
        torch.Size([2, 240, 64])
    """

    card = AttentionCard(
        formula='(1-l) sum_n l^n A^(n+1) v, A = softmax(q B^T) softmax(B k^T), learnt anchors B',
        time='O(N M d + M^3)',
        memory='O(N d + M^2)',
        source='"Improving vision attention with random walk graph kernel"',
        use='segmentation: weights that sum to 1, in the place of spatial reduction',
    )

    def __init__(self, *args, shared_anchors: bool = True, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.anchors_q = self._new_anchors()
        self.anchors_k = None if shared_anchors else self._new_anchors()

    def _new_anchors(self) -> nn.Parameter:
        anchors = torch.empty(self.num_heads, self.num_anchors, self.head_dim)
        for head in anchors:
            nn.init.xavier_uniform_(head)
        return nn.Parameter(anchors)

    def anchors(self, q: Tensor, k: Tensor, tokens: TokenMap) -> Tuple[Tensor, Tensor]:
        return self.anchors_q, self.anchors_q if self.anchors_k is None else self.anchors_k


@MODELS.register_module()
class RWGKP(RandomWalkAttention):
    """Random walk graph kernel attention with anchors pooled from queries and keys; no
    parameters of its own.

    The map is averaged over a grid of at most ``num_anchors`` cells with about the map's aspect;
    a map with fewer rows or columns than the grid has one cell for each. Padded tokens are left
    out of the averages; a cell of nothing but padding is an anchor 0, which reads all tokens alike.
    Extra tokens are in no cell; they read the anchors, and are read by them, like all others.

    Args:
        embed_dims, num_heads, num_anchors, decay, steps, heads_multiplier, solver: see
            :class:`RandomWalkAttention`.
        others: see :class:`BaseAttention`.

    Raises:
        ValueError: see :class:`RandomWalkAttention`.

    Example:
        >>> import torch
        >>> attn = RWGKP(embed_dims=64, num_heads=2, num_anchors=16)
        >>> attn(torch.randn(2, 12 * 20, 64), hw_shape=(12, 20)).shape
        torch.Size([2, 240, 64])
    """

    card = AttentionCard(
        formula='(1-l) sum_n l^n A^(n+1) v, A = softmax(q B^T) softmax(B k^T), pooled anchors B',
        time='O(N M d + M^3)',
        memory='O(N d + M^2)',
        source='"Improving vision attention with random walk graph kernel"',
        use='as RWGKA, without parameters of its own',
        map=True,
    )

    def attend(self, q: Tensor, k: Tensor, v: Tensor, tokens: TokenMap) -> Tensor:
        if is_static(*tokens.hw_shape):
            return super().attend(q, k, v, tokens)
        # One channel more, 1 in queries and 0 in keys, switches off the anchors that are not there.
        of_map = tokens.of_map()
        (anchors_q, _), (anchors_k, exists) = (
            pool_grid_of_any_map(self.num_anchors, tokens.split(x, 2)[1], of_map) for x in (q, k)
        )
        off = (~exists)[:, None].to(q.dtype) * (torch.finfo(q.dtype).min / 2)  # [M, 1]
        k, anchors_q, anchors_k = (F.pad(x, (0, 1)) for x in (k, anchors_q, anchors_k))
        q, anchors_k = F.pad(q, (0, 1), value=1.0), anchors_k + F.pad(off, (self.head_dim, 0))
        return self.walk(q, k, v, anchors_q, anchors_k, tokens)

    def anchors(self, q: Tensor, k: Tensor, tokens: TokenMap) -> Tuple[Tensor, Tensor]:
        grid = pooling_grid(self.num_anchors, tokens.hw_shape)
        rows, columns = (bins(*sizes, q.device) for sizes in zip(grid, tokens.hw_shape))
        of_map = tokens.of_map()
        q, k = tokens.split(q, 2)[1], tokens.split(k, 2)[1]
        return pool_tokens(q, of_map, rows, columns), pool_tokens(k, of_map, rows, columns)
