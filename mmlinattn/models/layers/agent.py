"""Agent attention (Han et al., ECCV 2024) as a layer."""

import math
from typing import Sequence, Tuple, Union

import torch
import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import Tensor, nn

from ...ops.common.checks import check_sides, check_square
from ...ops.common.numerics import accumulation_dtype, no_autocast
from .base import BaseAttention, TokenLayout
from .pooling import axis_weights, pool_tokens
from .softmax import softmax_attention

TABLE_SIDE = 7  # of the biases over the whole map


@MODELS.register_module()
class AgentAttention(BaseAttention):
    """Agent attention, "Agent Attention: On the Integration of Softmax and Linear Attention" (Han
    et al., ECCV 2024), linear in the number of tokens.

    Agents a, the means of the queries over the cells of a grid, collect the values and hand them to
    the queries::

        out = softmax(q a^T / sqrt d + B2) softmax(a k^T / sqrt d + B1) v + dwconv(v)

    The biases B1 and B2 of each head, agent and place are a sum of three terms: a 7 x 7 map, one of
    the row and one of the column. They are resized bilinearly to other maps, padding included, and
    to another grid of agents, as in the released code for detection. Cells overlap if the map has
    fewer rows or columns than the grid. Padded tokens are neither in means nor keys; a cell of
    padding only is no agent. Extra tokens (such as a class token) are queries and keys with bias 0,
    not in the cells.

    Args:
        num_agents: agents that the biases are for, a square number of at most the tokens of
            ``map_size``.
        map_size: side, or (H, W), of the map that the row and column terms are for.
        agent_grid: side, or (rows, columns), of the grid of agents, at most the tokens of
            ``map_size``; by default the square root of ``num_agents``. The release has larger grids
            for larger images, with the same weights.
        embed_dims, num_heads, lepe, kwargs: options of :class:`BaseAttention`;
            ``backend`` is ``'auto'``.

    Raises:
        ValueError: ``num_agents`` is not a square number, it or ``agent_grid`` is more than the
            tokens of ``map_size``, or one of these two is not one or two positive integers.

    Example:
        >>> attn = AgentAttention(embed_dims=64, num_heads=2, num_agents=9, map_size=(12, 20))
        >>> attn(torch.randn(2, 24 * 30, 64), hw_shape=(24, 30)).shape
        torch.Size([2, 720, 64])
    """

    needs_map = True
    backends = ('auto',)

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        num_agents: int = 49,
        map_size: Union[int, Sequence[int]] = 14,
        agent_grid: Union[int, Sequence[int], None] = None,
        lepe: int = 3,
        **kwargs,
    ) -> None:
        super().__init__(embed_dims, num_heads, lepe=lepe, **kwargs)
        self.side = check_square('num_agents', num_agents)
        height, width = check_sides(map_size, 'map_size')
        grid = self.side if agent_grid is None else agent_grid
        self.agent_grid = check_sides(grid, 'agent_grid')
        count, of_map = height * width, f'tokens of map_size=({height}, {width})'
        if num_agents > count:
            raise ValueError(
                f'num_agents={num_agents} is more than the {count} {of_map}: set map_size to the '
                'map of the stage, or fewer agents'
            )
        if math.prod(self.agent_grid) > count:
            raise ValueError(f'{agent_grid=} has more agents than the {count} {of_map}')
        for name in ('key', 'query'):
            shapes: dict = dict(table=(TABLE_SIDE,) * 2, rows=(height,), columns=(width,))
            for part, shape in shapes.items():
                bias = nn.Parameter(torch.empty(num_heads, num_agents, *shape))
                nn.init.trunc_normal_(bias, std=0.02)
                self.register_parameter(f'{name}_bias_{part}', bias)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: TokenLayout) -> Tensor:
        map_layout, mask = layout.without_extra_tokens(), layout.key_padding_mask
        rows, columns = (
            axis_weights(count, size, q) for count, size in zip(self.agent_grid, layout.hw_shape)
        )
        agents = pool_tokens(layout.split_extra(q, 2)[1], map_layout, rows, columns)
        empty = None
        if mask is not None:
            real = ~layout.split_extra(mask)[1].unflatten(1, layout.hw_shape)  # [B, H, W]
            count = rows.float() @ real.float() @ columns.float().transpose(-2, -1)
            empty = count.flatten(1) == 0  # [B, M]
        key_bias, query_bias = (
            F.pad(self._bias(name, layout.hw_shape, q), (layout.num_extra_tokens, 0))
            for name in ('key', 'query')
        )
        collected = softmax_attention(agents, k, v, mask, bias=key_bias)
        return softmax_attention(q, agents, collected, empty, bias=query_bias.transpose(2, 3))

    def _bias(self, name: str, hw_shape: Tuple[int, int], q: Tensor) -> Tensor:
        """Return the bias of the agents at each place, (1, heads, M, N) in the dtype of q."""
        height, width = hw_shape
        with no_autocast(q):
            table, rows, columns = (
                self._resize_agents(getattr(self, f'{name}_bias_{part}'))
                for part in ('table', 'rows', 'columns')
            )
            bias = F.interpolate(table, size=(height, width), mode='bilinear')
            bias = bias + F.interpolate(rows, size=height, mode='linear')[..., None]
            bias = bias + F.interpolate(columns, size=width, mode='linear')[:, :, None]
        return bias.flatten(2)[None].to(q.dtype)

    def _resize_agents(self, bias: Tensor) -> Tensor:
        """Resize a bias (heads, agents, ...) to the grid of agents, in at least float32."""
        bias = bias.to(accumulation_dtype(bias.dtype))
        if self.agent_grid == (self.side, self.side):
            return bias
        maps = bias.flatten(2).transpose(1, 2).unflatten(2, (self.side, self.side))
        maps = F.interpolate(maps, size=self.agent_grid, mode='bilinear')
        return maps.flatten(2).transpose(1, 2).unflatten(2, bias.shape[2:])
