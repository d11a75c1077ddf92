"""Learnt relative position bias for the logits of softmax attention."""

import math
from typing import Optional, Tuple

import torch
import torch.nn.functional as F
from mmengine.logging import print_log
from torch import Tensor, nn

from ...utils import check_integer


def relative_position_index(rows: Tensor, columns: Tensor, reach: Tuple[int, int]) -> Tensor:
    """Return the row-major indices of relative positions in a bias table.

    Rows and columns (Q, K) are those of the query minus those of the key, clamped to the ``reach``
    of the table. The result is (Q rows, Q columns, K rows, K columns).
    """
    rows, columns = (x.clamp(-r, r) + r for x, r in zip((rows, columns), reach))
    return rows[:, None, :, None] * (2 * reach[1] + 1) + columns[:, None]


class RelativePositionBias(nn.Module):
    """Bias per head and relative position of query and key, as in Swin (Liu et al., ICCV 2021).

    Extra tokens (class token, registers) have no position; they have a separate bias, as in ViL.

    Loading a checkpoint resizes a table of another size bilinearly and logs it. The reach is saved
    as ``table_reach``. A table without it, as in released weights, must be square, and so must the
    reach of the model.

    Args:
        num_heads: heads.
        reach: largest distances in rows and columns with an entry in the table, integers of at
            least 0. Larger distances are clamped.
        num_extra_tokens: number E of extra tokens with a bias. With 0, the bias of extra tokens
            is 0.

    Raises:
        ValueError: ``reach`` or ``num_extra_tokens`` is not an integer of at least 0; on loading,
            a table cannot be resized, or its numbers of rows and columns are unknown.

    Example:
        >>> bias = RelativePositionBias(num_heads=2, reach=(3, 3), num_extra_tokens=1)
        >>> offsets = torch.arange(4)[:, None] - torch.arange(4)
        >>> bias.map_bias(offsets, offsets).shape
        torch.Size([2, 4, 4, 4, 4])
        >>> bias.extra_key_bias(1).shape, bias.extra_query_bias(1, 16).shape
        (torch.Size([2, 1, 1]), torch.Size([2, 1, 17]))
    """

    table: nn.Parameter  # [(2 rows + 1) (2 columns + 1), heads]
    extra: Optional[nn.Parameter]  # [2, heads, E], of extra queries and of extra keys
    between: Optional[nn.Parameter]  # [heads, E, E], of extra queries with extra keys
    table_reach: Tensor

    def __init__(self, num_heads: int, reach: Tuple[int, int], num_extra_tokens: int = 0) -> None:
        super().__init__()
        try:
            rows, columns = (check_integer('reach', most, least=0) for most in reach)
        except ValueError:
            raise ValueError(f'reach must be two integers of at least 0, got {reach!r}') from None
        num_extra_tokens = check_integer('num_extra_tokens', num_extra_tokens, least=0)
        self.reach, self.num_extra_tokens = (rows, columns), num_extra_tokens
        self.table = _new_bias((2 * rows + 1) * (2 * columns + 1), num_heads)
        self.extra = self.between = None
        if num_extra_tokens:
            self.extra = _new_bias(2, num_heads, num_extra_tokens)
            self.between = _new_bias(num_heads, num_extra_tokens, num_extra_tokens)
        # The length of the table does not determine its numbers of rows and columns.
        self.register_buffer('table_reach', torch.tensor(self.reach))
        self._register_load_state_dict_pre_hook(self._resize_checkpoint_table)

    def map_bias(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Return the bias of map tokens, (heads, Q rows, Q columns, K rows, K columns)."""
        return self.table[relative_position_index(rows, columns, self.reach)].permute(4, 0, 1, 2, 3)

    def extra_key_bias(self, num_extra_tokens: int) -> Tensor:
        """Return the bias of map queries and extra keys, (heads, 1, E)."""
        if self.extra is None:
            return self.table.new_zeros(self.table.shape[1], 1, num_extra_tokens)
        return self.extra[1, :, None]

    def extra_query_bias(self, num_extra_tokens: int, count: int) -> Tensor:
        """Return the bias of extra queries with extra and map keys, (heads, E, E + count)."""
        if self.extra is None or self.between is None:
            shape = (self.table.shape[1], num_extra_tokens, num_extra_tokens + count)
            return self.table.new_zeros(shape)
        return torch.cat([self.between, self.extra[0, :, :, None].expand(-1, -1, count)], -1)

    def check_extra_tokens(self, num_extra_tokens: int) -> None:
        """Raise ValueError unless the bias covers this number of extra tokens, or none."""
        if self.num_extra_tokens not in (0, num_extra_tokens):
            raise ValueError(
                f'the relative position bias was built for num_extra_tokens='
                f'{self.num_extra_tokens}, got {num_extra_tokens} extra tokens'
            )

    def _resize_checkpoint_table(self, state_dict: dict, prefix: str, *_) -> None:
        """Resize the table of a checkpoint to the size of the model."""
        name = f'{prefix}table'
        if name not in state_dict:
            return
        loaded, saved = state_dict[name], state_dict.get(f'{prefix}table_reach')
        state_dict[f'{prefix}table_reach'] = torch.tensor(self.reach)
        if saved is None and self.reach[0] != self.reach[1]:
            raise ValueError(
                f'{name} has no {prefix}table_reach, so its numbers of rows and columns are '
                f'unknown; the model has the reach {self.reach}, which is not square'
            )
        is_2d, heads = loaded.dim() == 2, self.table.shape[1]
        old = (math.isqrt(len(loaded)),) * 2 if is_2d else ()
        if saved is not None:
            old = tuple(2 * int(most) + 1 for most in saved.flatten())
        valid = is_2d and len(old) == 2 and min(old) > 0 and all(side % 2 for side in old)
        if not valid or loaded.shape != (old[0] * old[1], heads):
            expected = 'a square' if saved is None else f'{prefix}table_reach={saved.tolist()}'
            raise ValueError(
                f'{name} has shape {tuple(loaded.shape)}, which is not a table of {expected} for '
                f'{heads} heads; the model needs {tuple(self.table.shape)}'
            )
        new = (2 * self.reach[0] + 1, 2 * self.reach[1] + 1)
        if old == new:
            return
        print_log(f'{name} is resized from {old[0]}x{old[1]} to {new[0]}x{new[1]}')
        grid = loaded.float().T.unflatten(1, old)[None]
        resized = F.interpolate(grid, size=new, mode='bilinear')
        state_dict[name] = resized[0].flatten(1).T.to(loaded.dtype)


def _new_bias(*shape: int) -> nn.Parameter:
    return nn.Parameter(nn.init.trunc_normal_(torch.empty(shape), std=0.02))
