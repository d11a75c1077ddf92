"""Learnt numbers for relative positions, added to the logits of softmax attention."""

import math
from typing import Dict, Optional, Tuple

import torch
import torch.nn.functional as F
from mmengine.logging import print_log
from torch import Tensor, nn


def relative_index(rows: Tensor, columns: Tensor, reach: Tuple[int, int]) -> Tensor:
    """Where the number of a relative position stands in a table, row-major.

    Args:
        rows, columns: integers (Q, K), by how many rows a query is below a key, and by how many
            columns right of it.
        reach: the largest distances, in rows and columns, that the table has; larger ones count
            as these.

    Returns:
        integers (Q rows, Q columns, K rows, K columns).

    Example:
        >>> import torch
        >>> apart = torch.arange(2)[:, None] - torch.arange(2)
        >>> relative_index(apart, torch.zeros(1, 1, dtype=torch.int64), (1, 1)).flatten(1)
        tensor([[4, 1],
                [7, 4]])
    """
    rows, columns = (x.clamp(-r, r) + r for x, r in zip((rows, columns), reach))
    return rows[:, None, :, None] * (2 * reach[1] + 1) + columns[:, None]


class RelativeBias(nn.Module):
    """A number for each head and each relative position of a query and a key, as in Swin (Liu et
    al., ICCV 2021); extra tokens, which have no position, have numbers of their own, as in ViL.

    A table of another size, in a checkpoint, is resized bilinearly on loading, and said so. Its
    reach is saved with it, as ``table_reach``. Without that, as in released weights, it is a table
    of a square, and is taken where the reach here is a square, too.

    Args:
        num_heads: heads.
        reach: the largest distances, in rows and columns, with a number of their own; positions
            further apart have the number of these. Integers of at least 0.
        num_extra_tokens: extra tokens with numbers of their own. With 0 that of extra tokens is 0.

    Attributes:
        table: ((2 rows + 1) (2 columns + 1), heads).
        extra: (2, heads, E), of an extra query and any key of the map, and of an extra key and any
            query of the map; None without extra tokens.
        between: (heads, E, E), of an extra query and an extra key, or None.

    Raises:
        ValueError: a reach or a number of extra tokens that is no integer of at least 0; on
            loading, a table that cannot be resized, or whose rows and columns are not known.

    Example:
        >>> bias = RelativeBias(num_heads=2, reach=(3, 3), num_extra_tokens=1)
        >>> apart = torch.arange(4)[:, None] - torch.arange(4)
        >>> bias.of_map(apart, apart).shape
        torch.Size([2, 4, 4, 4, 4])
        >>> bias.to_extra(1).shape, bias.from_extra(1, 16).shape
        (torch.Size([2, 1, 1]), torch.Size([2, 1, 17]))
    """

    table: nn.Parameter
    extra: Optional[nn.Parameter]
    between: Optional[nn.Parameter]
    table_reach: Tensor

    def __init__(self, num_heads: int, reach: Tuple[int, int], num_extra_tokens: int = 0) -> None:
        super().__init__()
        if len(reach) != 2 or any(type(most) is not int or most < 0 for most in reach):
            raise ValueError(f'reach must be two integers of at least 0, got {reach!r}')
        if type(num_extra_tokens) is not int or num_extra_tokens < 0:
            raise ValueError(
                f'num_extra_tokens must be an integer of at least 0, got {num_extra_tokens!r}'
            )
        self.reach: Tuple[int, int] = (reach[0], reach[1])
        self.num_extra_tokens = num_extra_tokens
        shapes: Dict[str, Tuple[int, ...]] = {}
        shapes['table'] = ((2 * reach[0] + 1) * (2 * reach[1] + 1), num_heads)
        if num_extra_tokens:
            shapes['extra'] = (2, num_heads, num_extra_tokens)
            shapes['between'] = (num_heads, num_extra_tokens, num_extra_tokens)
        for name in ('table', 'extra', 'between'):
            value = nn.Parameter(torch.empty(shapes[name])) if name in shapes else None
            self.register_parameter(name, value)
            if value is not None:
                nn.init.trunc_normal_(value, std=0.02)
        # Saved with the table, as its length does not tell rows from columns.
        self.register_buffer('table_reach', torch.tensor(self.reach))
        self._register_load_state_dict_pre_hook(self._fit_table)

    def of_map(self, rows: Tensor, columns: Tensor) -> Tensor:
        """(heads, Q rows, Q columns, K rows, K columns), for what :func:`relative_index` takes."""
        return self.table[relative_index(rows, columns, self.reach)].permute(4, 0, 1, 2, 3)

    def to_extra(self, num_extra_tokens: int) -> Tensor:
        """(heads, 1, E): any query of the map, extra keys."""
        if self.extra is None:
            return self.table.new_zeros(self.table.shape[1], 1, num_extra_tokens)
        return self.extra[1, :, None]

    def from_extra(self, num_extra_tokens: int, count: int) -> Tensor:
        """(heads, E, E + count): extra queries, extra keys and ``count`` keys of the map."""
        if self.extra is None or self.between is None:
            shape = (self.table.shape[1], num_extra_tokens, num_extra_tokens + count)
            return self.table.new_zeros(shape)
        return torch.cat([self.between, self.extra[0, :, :, None].expand(-1, -1, count)], -1)

    def check_extra_tokens(self, num_extra_tokens: int) -> None:
        """Raise ValueError unless it has numbers for so many, or for none."""
        if self.num_extra_tokens not in (0, num_extra_tokens):
            raise ValueError(
                f'there are relative biases for num_extra_tokens={self.num_extra_tokens}, got '
                f'{num_extra_tokens} extra tokens'
            )

    def _fit_table(self, state_dict: dict, prefix: str, *_) -> None:
        """A table of a checkpoint as this layer needs it."""
        name = f'{prefix}table'
        if name not in state_dict:
            return
        theirs, saved = state_dict[name], state_dict.get(f'{prefix}table_reach')
        state_dict[f'{prefix}table_reach'] = torch.tensor(self.reach)
        if saved is None and self.reach[0] != self.reach[1]:
            raise ValueError(
                f'{name} comes without {prefix}table_reach, which tells rows from columns; the '
                f'model has a reach of {self.reach}, no square'
            )
        flat, heads = theirs.dim() == 2, self.table.shape[1]
        old = (math.isqrt(len(theirs)),) * 2 if flat else ()
        if saved is not None:
            old = tuple(2 * int(most) + 1 for most in saved.flatten())
        fits = flat and len(old) == 2 and min(old) > 0 and all(side % 2 for side in old)
        if not fits or theirs.shape != (old[0] * old[1], heads):
            of = 'of a square' if saved is None else f'of {prefix}table_reach={saved.tolist()}'
            raise ValueError(
                f'{name} of shape {tuple(theirs.shape)} does not fit one of '
                f'{tuple(self.table.shape)}: it is no table {of} for {heads} heads'
            )
        new = (2 * self.reach[0] + 1, 2 * self.reach[1] + 1)
        if old == new:
            return
        print_log(f'{name} is resized from {old[0]}x{old[1]} to {new[0]}x{new[1]}')
        grid = theirs.float().T.unflatten(1, old)[None]
        resized = F.interpolate(grid, size=new, mode='bilinear')
        state_dict[name] = resized[0].flatten(1).T.to(theirs.dtype)
