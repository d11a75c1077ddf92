"""Nystrom attention (Xiong et al., AAAI 2021) as a layer."""

from mmengine.registry import MODELS
from torch import Tensor

from ...ops import nystrom_attention
from ...ops.common.checks import check_square
from ...utils import check_integer
from .base import BaseAttention, TokenLayout
from .pooling import axis_weights, cell_masks, pool_tokens


@MODELS.register_module()
class NystromAttention(BaseAttention):
    """Nystrom attention, "Nyströmformer" (Xiong et al., AAAI 2021), linear in the number of tokens.

    It approximates softmax attention through landmarks, see
    :func:`mmlinattn.ops.nystrom_attention`. The release uses means of segments of a sequence as
    landmarks. Here landmarks are means over a square grid of cells, which overlap if the map has
    fewer rows or columns than the grid. The grid covers the rows and columns up to the last real
    token, so that padding does not change the landmarks of an image. A cell of padding only is a
    landmark 0. The depth-wise convolution of the values, 1D in the release, is 2D.

    Args:
        num_landmarks: M, a square number.
        iterations: iterations of the pseudo-inverse.
        embed_dims, num_heads, lepe, kwargs: options of :class:`BaseAttention`.

    Raises:
        ValueError: ``num_landmarks`` is not a square number, ``iterations`` is below 1.

    Example:
        >>> import torch
        >>> attn = NystromAttention(embed_dims=64, num_heads=2)
        >>> attn(torch.randn(2, 12 * 20, 64), hw_shape=(12, 20)).shape
        torch.Size([2, 240, 64])
    """

    needs_map = True

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
        self.grid = check_square('num_landmarks', num_landmarks)
        self.iterations = check_integer('iterations', iterations)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: TokenLayout) -> Tensor:
        map_layout = layout.without_extra_tokens()
        cells = self._cells(q, map_layout)
        landmarks_q, landmarks_k = (
            pool_tokens(layout.split_extra(x, 2)[1], map_layout, *cells) for x in (q, k)
        )
        return nystrom_attention(
            q, k, v, landmarks_q, landmarks_k, iterations=self.iterations,
            key_padding_mask=layout.key_padding_mask, backend=self.backend,
        )  # fmt: skip

    def _cells(self, q: Tensor, layout: TokenLayout):
        """Return the cells of rows and of columns, see :func:`pool_tokens`."""
        height, width = layout.hw_shape
        if layout.key_padding_mask is None:
            return axis_weights(self.grid, height, q), axis_weights(self.grid, width, q)
        real = ~layout.key_padding_mask.unflatten(1, (height, width))  # [B, H, W]
        return (
            cell_masks(self.grid, height, q.device, _extent(real.any(2))),
            cell_masks(self.grid, width, q.device, _extent(real.any(1))),
        )


def _extent(used: Tensor) -> Tensor:
    """Return the position after the last True of (B, size), at least 1, as (B,)."""
    size = used.shape[1]
    return size - used.flip(1).int().argmax(1) * used.any(1)
