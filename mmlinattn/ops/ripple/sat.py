"""Ripple attention by summed-area tables: O(N R m d) time, O(N m d) memory, any groups.

The products ``k_j v_j^T`` are summed over all rectangles that start at the first token; four
corners of that table give the sum over any square. With ``c_g = w_g - w_{g+1}`` the groups become
nested squares: ``out_i = q_i^T sum_g c_g(i) square_g(i)``, the last of which is the whole map.
Tables are float64: those of a large map exceed a small square by more than float32 has digits.

The backward pass needs the same squares for queries and weights, and for keys and values the
adjoint: every token adds ``c_g q_i grad_i^T`` to its squares. That is again one table: four signed
corners a square first, the cumulative sums of all groups at once afterwards.
"""

from typing import Optional, Sequence, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..common.first_derivative import first_derivative_only
from ..common.numerics import accumulation_dtype, no_autocast, zero_padding
from .groups import RippleOptions, drop_empty_last, group_radii


def ripple_sat(q: Tensor, k: Tensor, v: Tensor, weights: Tensor, options: RippleOptions) -> Tensor:
    """Compute :func:`mmlinattn.ops.ripple_attention`."""
    out_dtype, batch_heads = v.dtype, q.shape[:2]
    hw_shape, mask = options.hw_shape, options.key_padding_mask
    dtype = accumulation_dtype(out_dtype)
    # A square that covers the map is the map: its weight joins the last one.
    radii = group_radii(weights.shape[-1] - 1, options.groups)
    radii = [r for r in radii if r < max(hw_shape) - 1]
    with no_autocast(q):
        k = zero_padding(k.to(dtype), mask)
        v1 = F.pad(v.to(dtype), (0, 1), value=1.0)  # the normaliser is the attention to ones
        beyond = radii[-1] + 1 if radii else 0
        weights = weights[..., : len(radii) + 1].to(dtype)
        weights = drop_empty_last(weights, hw_shape, beyond, mask)
        # [B * heads, height, width, channels]
        maps = [x.flatten(0, 1).unflatten(1, hw_shape) for x in (q.to(dtype), k, v1, weights)]
        total = RippleSums.apply(*maps, tuple(radii))
        out = total[..., :-1] / (total[..., -1:] + options.eps)
        return out.flatten(1, 2).unflatten(0, batch_heads).to(out_dtype)


class RippleSums(torch.autograd.Function):
    """``q_i^T sum_m w_g(i, m)(i) k_m v_m^T``: q, k (n, H, W, m), v (n, H, W, e) to (n, H, W, e).

    ``weights`` is (n, H, W, G + 1), ``radii`` the G radii of the groups but the last.
    """

    @staticmethod
    def forward(
        ctx, q: Tensor, k: Tensor, v: Tensor, weights: Tensor, radii: Tuple[int, ...]
    ) -> Tensor:
        ctx.save_for_backward(q, k, v, weights)
        ctx.radii = radii
        table = outer_table(k, v)
        steps = weights[..., :-1] - weights[..., 1:]
        whole = weights[..., -1:, None] * q[..., None, :]  # [n, H, W, 1, m]
        out = (whole.flatten(1, 3) @ table[:, -1, -1].to(q.dtype)).view(v.shape)
        for y in range(q.shape[1]):
            row = q[:, y, :, None]  # [n, W, 1, m]
            for g, radius in enumerate(radii):
                sums = (row @ squares(table, y, radius).to(q.dtype)).squeeze(-2)
                out[:, y].addcmul_(steps[:, y, :, g, None], sums)
        return out

    @staticmethod
    @first_derivative_only
    def backward(ctx, grad: Tensor) -> Tuple[Optional[Tensor], ...]:
        q, k, v, weights = ctx.saved_tensors
        with no_autocast(grad):
            return (*_backward(grad, q, k, v, weights, ctx.radii), None)


def _backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, weights: Tensor, radii: Sequence[int]
) -> Tuple[Tensor, ...]:
    table = outer_table(k, v)
    state = table[:, -1, -1].to(q.dtype)  # [n, m, e]
    steps, last = weights[..., :-1] - weights[..., 1:], weights[..., -1:]

    # The whole map.
    by_query = (grad.flatten(1, 2) @ state.transpose(1, 2)).view(q.shape)
    grad_q = last * by_query
    grad_state = (last * q).flatten(1, 2).transpose(1, 2) @ grad.flatten(1, 2)

    # The squares.
    grad_steps = weights.new_empty(weights.shape)
    grad_steps[..., -1] = (q * by_query).sum(-1)
    grad_table = torch.zeros_like(table)
    for y in range(q.shape[1]):
        outer = q[:, y, :, :, None] * grad[:, y, :, None, :]  # [n, W, m, e]
        for g, radius in enumerate(radii):
            square = squares(table, y, radius).to(q.dtype)
            by_query = (square @ grad[:, y, ..., None]).squeeze(-1)
            grad_q[:, y].addcmul_(steps[:, y, :, g, None], by_query)
            grad_steps[:, y, :, g] = (q[:, y] * by_query).sum(-1)
            add_corners(grad_table, y, radius, steps[:, y, :, g, None, None] * outer)
    accumulate(grad_table)
    grad_table += grad_state[:, None, None]
    grad_table = grad_table[:, :-1, :-1].to(q.dtype)
    grad_k, grad_v = torch.empty_like(k), torch.empty_like(v)
    for y in range(q.shape[1]):
        grad_k[:, y] = (grad_table[:, y] @ v[:, y, ..., None]).squeeze(-1)
        grad_v[:, y] = (k[:, y, :, None] @ grad_table[:, y]).squeeze(-2)
    # steps_g = w_g - w_{g+1}, the last of them w_G.
    grad_weights = grad_steps - F.pad(grad_steps[..., :-1], (1, 0))
    return grad_q, grad_k, grad_v, grad_weights


def outer_table(k: Tensor, v: Tensor) -> Tensor:
    """Sum ``k v^T`` over all rectangles from the first token, (n, H + 1, W + 1, m, e) float64."""
    n, height, width, dim = k.shape
    shape = n, height + 1, width + 1, dim, v.shape[-1]
    table = k.new_zeros(shape, dtype=torch.float64)
    table[:, 1:, 1:] = k[..., None] * v[..., None, :]
    accumulate(table)
    return table


def accumulate(table: Tensor) -> None:
    """Accumulate along both axes of the map, in place."""
    # torch.cumsum along columns is six times slower here.
    for y in range(1, table.shape[1]):
        table[:, y] += table[:, y - 1]
    for x in range(1, table.shape[2]):
        table[:, :, x] += table[:, :, x - 1]


def squares(table: Tensor, y: int, radius: int) -> Tensor:
    """Sum over the squares around the tokens of row ``y``, (n, W, m, e)."""
    height, width = table.shape[1] - 1, table.shape[2] - 1
    rows = table[:, min(y + radius + 1, height)] - table[:, max(y - radius, 0)]
    reach = min(radius, width)
    out = torch.empty_like(rows[:, :-1])
    out[:, : width - reach] = rows[:, reach + 1 :]
    out[:, width - reach :] = rows[:, -1:]
    out[:, reach:] -= rows[:, : width - reach]
    return out


def add_corners(table: Tensor, y: int, radius: int, x: Tensor) -> None:
    """Add corners that :func:`accumulate` spreads as ``x`` over the squares of row ``y``."""
    height, width = table.shape[1] - 1, table.shape[2] - 1
    reach = min(radius, width)
    rows = torch.zeros_like(table[:, 0])
    rows[:, : width - reach] = x[:, reach:]
    rows[:, 0] += x[:, :reach].sum(1)
    rows[:, reach + 1 :] -= x[:, : width - reach]
    table[:, max(y - radius, 0)] += rows
    table[:, min(y + radius + 1, height)] -= rows
