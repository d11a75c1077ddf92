"""Ripple attention."""

from typing import Optional, Tuple

import torch
from torch import Tensor

from ..common.checks import check_hw_shape, check_qkv
from ..common.dispatch import choose_backend
from ..common.launch_table import unsupported_tokens
from ..common.numerics import active_tracer, is_exporting
from .groups import RippleOptions, check_groups, drop_empty_last
from .reference import ripple_reference
from .rows import ripple_rows
from .sat import ripple_sat
from .tile import ripple_tile
from .weights import check_threshold, fixed_weights, stick_breaking

__all__ = ['check_groups', 'check_threshold', 'fixed_weights', 'ripple_attention', 'stick_breaking']

ALGORITHMS = ('tile', 'sat')
KERNELS = (
    'kv_state', 'ripple', 'ripple_query_backward', 'ripple_far_backward', 'ripple_key_backward',
)  # fmt: skip
# Reach of the halo of a tile; beyond it summed-area tables cost less.
MAX_DISTANCE = 16


def ripple_attention(
    q: Tensor, k: Tensor, v: Tensor, weights: Tensor, *,
    hw_shape: Tuple[int, int], groups: str = 'chebyshev', key_padding_mask: Optional[Tensor] = None,
    eps: float = 1e-6, backend: str = 'auto',
) -> Tensor:  # fmt: skip
    """Compute linear attention with a weight for each ring of distance, equation 3 of "Ripple
    Attention for Visual Perception with Sub-quadratic Complexity" (Zheng et al., ICML 2022)::

        a_im = w_{g(i, m)}(i) q_i . k_m
        out_i = sum_m a_im v_m / (sum_m a_im + eps)

    ``g(i, m)`` is the group of the Chebyshev distance of tokens i and m on the map, from 0 to R;
    the last group holds all larger distances. R may exceed the map. Padded keys are excluded from
    both sums; a query whose keys are all padded yields 0. Weights need not lie on the simplex.

    Besides the definition (``'reference'``, O(N^2)) and the kernels (``'triton'``), two algorithms
    compute the same result. Their costs for N tokens with m features and d values:

    - ``'sat'``: summed-area tables, the paper's. O(N R m d) time, O(N m d) memory; any groups.
    - ``'tile'``: one global linear attention plus dense products of small tiles of queries with
      the halo of keys within distance R. O(N R^2 (m + d)) time with a small constant,
      O(N (m + d)) memory. Chebyshev groups only.

    ``'torch'`` chooses ``'sat'`` for logarithmic groups and for large R, see
    :func:`choose_algorithm`, and ``'tile'`` otherwise. Large maps compile slowly: ``torch.compile``
    makes a graph for each size, in which it unrolls rows of the tables and chunks of the tiles;
    leave its option ``dynamic`` at the default. Exported graphs and
    transforms of ``torch.func`` take plain operations with the same result, see :mod:`.rows`.

    Args:
        q, k: feature-mapped queries and keys, (B, heads, N, m), any strides; float16, bfloat16,
            float32 or float64. Half types are computed in float32, except in the reference
            implementation, which also raises an error if one is negative: the normaliser may then
            come close to 0.
        v: values (B, heads, N, d_v), same dtype.
        weights: spatial weights (B, heads, N, R + 1), R >= 0, any floating dtype, see
            :func:`stick_breaking`.
        hw_shape: (H, W) with H * W == N.
        groups: ``'chebyshev'``: group r is distance r. ``'log'``: group 0 is distance 0, group g
            is distances 2^(g-1) to 2^g - 1.
        key_padding_mask: (B, N) bool, True = padding.
        eps: added to the normaliser.
        backend: ``'auto'``, ``'reference'``, ``'torch'``, ``'triton'``, ``'tile'`` or ``'sat'``.

    Returns:
        (B, heads, N, d_v) in the dtype of ``v``.

    Raises:
        ValueError: shapes, dtypes or devices do not match; unknown option; ``'tile'`` with
            logarithmic groups; negative features (reference implementation); groups that reach over
            more than 127 rows in an exported graph of dynamic size.
        TypeError: the padding mask is not bool.
        BackendError: the requested backend cannot serve the call.

    Example:
        >>> import torch
        >>> q, k, v = torch.rand(3, 2, 4, 6 * 5, 16)
        >>> weights = stick_breaking(torch.randn(2, 4, 6 * 5, 3))
        >>> ripple_attention(q, k, v, weights, hw_shape=(6, 5)).shape
        torch.Size([2, 4, 30, 16])
    """
    check_groups(groups, backend)
    check_qkv(q, k, v, key_padding_mask)
    hw_shape = check_hw_shape(q.shape[2], hw_shape, 'q')
    if weights.dim() != 4 or weights.shape[:3] != q.shape[:3] or not weights.shape[3]:
        raise ValueError(
            f'weights must have shape (B, heads, N, R + 1) = '
            f'({", ".join(map(str, q.shape[:3]))}, R + 1) with R >= 0, got {tuple(weights.shape)}'
        )
    if not weights.is_floating_point() or weights.device != q.device:
        found = f'{weights.dtype} on {weights.device}'
        raise ValueError(f'weights must be floats on {q.device}, got {found}')
    options = RippleOptions(hw_shape, groups, key_padding_mask, eps)
    chosen = choose_backend(
        'ripple_attention', backend, q, _unsupported_reason, q, v, weights, options,
        algorithms=ALGORITHMS,
    )  # fmt: skip
    if chosen == 'triton':
        from .triton_kernels import OPERATOR  # imports Triton

        last = weights.shape[-1] - 1
        if key_padding_mask is not None or max(hw_shape) // 2 < last:
            weights = drop_empty_last(weights, hw_shape, last, key_padding_mask)
        return OPERATOR(OPERATOR.options(*hw_shape, float(eps)), q, k, v, weights, key_padding_mask)
    if chosen == 'reference':
        return ripple_reference(q, k, v, weights, options)
    if is_exporting() or (not torch.compiler.is_compiling() and active_tracer()):
        # Plain operations with the same result. The compiler of torch 2.4 fails at the last check.
        return ripple_rows(q, k, v, weights, options)
    if torch.compiler.is_compiling():
        hw_shape = _as_constant(hw_shape[0]), _as_constant(hw_shape[1])
        options = RippleOptions(hw_shape, groups, key_padding_mask, eps)
    if chosen == 'torch':
        chosen = choose_algorithm(weights.shape[-1] - 1, q.shape[-1], hw_shape, groups)
    return (ripple_tile if chosen == 'tile' else ripple_sat)(q, k, v, weights, options)


def _as_constant(size: int) -> int:
    """Return a size that torch.compile takes for a constant: plans of symbols take it minutes."""
    count = 0
    for _ in range(size):
        count += 1
    return count


def _unsupported_reason(
    q: Tensor, v: Tensor, weights: Tensor, options: RippleOptions
) -> Optional[str]:
    """Return why the kernels cannot serve the call, or None if they can."""
    max_distance = weights.shape[-1] - 1
    if options.groups != 'chebyshev':
        return f'groups={options.groups!r} have no kernel'
    if not 1 <= max_distance <= MAX_DISTANCE:
        return f'kernels support R from 1 to {MAX_DISTANCE}, got {max_distance}'
    return unsupported_tokens(q, v.shape[3], KERNELS)


def choose_algorithm(
    max_distance: int, num_features: int, hw_shape: Tuple[int, int], groups: str
) -> str:
    """Return the algorithm of ``backend='torch'``: ``'sat'`` or ``'tile'``."""
    if groups != 'chebyshev':
        return 'sat'
    # Distances beyond the map cost nothing. Tiles cost R^2, tables R m: the measured crossing.
    max_distance = min(max_distance, max(hw_shape) - 1)
    return 'sat' if max_distance > 20 + num_features / 2 else 'tile'
