"""Nystrom attention as a layer."""

import math

from mmengine.registry import MODELS
from torch import Tensor

from ...ops import nystrom_attention
from ...ops.anchors import check_iterations
from .attention_info import AttentionCard
from .base import BaseAttention, TokenMap
from .pooling import bins, pool_tokens


@MODELS.register_module()
class NystromAttention(BaseAttention):
    """Nystrom attention (Xiong et al., "Nyströmformer", AAAI 2021): softmax attention through
    landmarks, linear in the number of tokens; see :func:`mmlinattn.ops.nystrom_attention`.

    The release takes the means of segments of a sequence as landmarks; on a map they are the means
    over a square grid of cells, which overlap where the map has fewer rows or columns than the
    grid. The grid is laid over the rows and columns up to the last real token, so that a padded
    image has the landmarks that it has alone; a cell of nothing but padding is a landmark 0. The
    depth-wise convolution of the values, 1D in the release, is 2D.

    Args:
        embed_dims, num_heads: channels and heads.
        num_landmarks: M, a square number.
        iterations: of the pseudo-inverse.
        lepe: kernel size of the convolution, 0 for none.
        others: see :class:`BaseAttention`.

    Raises:
        ValueError: a number of landmarks that is not square, fewer than one iteration, and those
            of :class:`BaseAttention`.

    Example:
        >>> import torch
        >>> attn = NystromAttention(embed_dims=64, num_heads=2)
        >>> attn(torch.randn(2, 12 * 20, 64), hw_shape=(12, 20)).shape
        torch.Size([2, 240, 64])
    """

    card = AttentionCard(
        formula='softmax(q k~^T) softmax(q~ k~^T)^+ softmax(q~ k^T) v + dwconv(v), ~: cell means',
        time='O(N M d + M^3)',
        memory='O(N d + M^2)',
        source='Xiong et al., AAAI 2021',
        use='to stay near softmax attention, also with its weights, at high resolution',
        map=True,
    )

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        num_landmarks: int = 64,
        iterations: int = 6,
        lepe: int = 5,
        **kwargs,
    ) -> None:
        super().__init__(embed_dims, num_heads, lepe=lepe, **kwargs)
        self.grid = math.isqrt(max(num_landmarks, 0))
        if self.grid < 1 or self.grid**2 != num_landmarks:
            raise ValueError(f'num_landmarks must be a square number, got {num_landmarks}')
        check_iterations(iterations)
        self.iterations = iterations

    def attend(self, q: Tensor, k: Tensor, v: Tensor, tokens: TokenMap) -> Tensor:
        of_map = tokens.of_map()
        cells = self._cells(q, of_map)
        landmarks_q, landmarks_k = (
            pool_tokens(tokens.split(x, 2)[1], of_map, *cells) for x in (q, k)
        )
        return nystrom_attention(
            q, k, v, landmarks_q, landmarks_k, iterations=self.iterations,
            key_padding_mask=tokens.key_padding_mask, backend=self.backend,
        )  # fmt: skip

    def _cells(self, q: Tensor, tokens: TokenMap):
        """Rows and columns of the cells, see :func:`mmlinattn.models.layers.pooling.bins`."""
        height, width = tokens.hw_shape
        if tokens.key_padding_mask is None:
            return bins(self.grid, height, q.device), bins(self.grid, width, q.device)
        real = ~tokens.key_padding_mask.unflatten(1, (height, width))  # [B, H, W]
        return (
            bins(self.grid, height, q.device, _extent(real.any(2))),
            bins(self.grid, width, q.device, _extent(real.any(1))),
        )


def _extent(used: Tensor) -> Tensor:
    """Place up to the last one that is used, at least 1: (B, size) to (B,)."""
    size = used.shape[1]
    return size - used.flip(1).int().argmax(1) * used.any(1)
