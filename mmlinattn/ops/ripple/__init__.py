"""Ripple attention."""

from dataclasses import replace
from functools import partial
from typing import Optional, Tuple

from torch import Tensor

from ..common.checks import check_hw_shape, check_qkv
from ..common.dispatch import check_backend as check_operator_backend
from ..common.dispatch import choose_backend
from ..common.kernel_check import Trial
from ..common.kernel_fallback import run_kernels
from ..common.numerics import is_exporting, needs_gradient
from .clip import clip_ripple_attention
from .naive import ripple_naive
from .options import RippleOptions, check_groups
from .reference import ripple_reference
from .rows import ripple_rows
from .sat import ripple_sat
from .softmax import softmax_ripple, softmax_ripple_reference
from .tile import ripple_tile
from .weights import STICKS, check_threshold, fixed_weights, stick_breaking

__all__ = [
    'check_backend',
    'check_threshold',
    'clip_ripple_attention',
    'fixed_weights',
    'ripple_attention',
    'softmax_ripple_attention',
    'stick_breaking',
]

ALGORITHMS = ('tile', 'sat', 'naive')


def ripple_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    weights: Tensor,
    *,
    hw_shape: Tuple[int, int],
    groups: str = 'chebyshev',
    stick: Optional[str] = None,
    key_padding_mask: Optional[Tensor] = None,
    eps: float = 1e-6,
    backend: str = 'auto',
) -> Tensor:
    """Compute linear attention with a weight for each ring of distance, equation 3 of "Ripple
    Attention for Visual Perception with Sub-quadratic Complexity" (Zheng et al., ICML 2022)::

        a_im = w_{g(i, m)}(i) q_i . k_m
        out_i = sum_m a_im v_m / (sum_m a_im + eps)

    ``g(i, m)`` is the group of the Chebyshev distance of tokens i and m on the map, from 0 to R;
    the last group holds all larger distances. R may exceed the map: groups without tokens are
    empty, and the result stays exact. Padded keys are excluded from both sums; a query whose keys
    are all padded yields 0. Weights need not lie on the simplex.

    Besides the definition (``'reference'``, O(N^2)) and the kernels (``'triton'``), three
    algorithms compute the same result. Their costs for N tokens with m features and d values:

    - ``'sat'``: summed-area tables, the paper's. O(N R m d) time, O(N m d) memory; any groups.
      Computes in at least float32: sums over the map lose digits that the differences of corners
      need.
    - ``'tile'``: one global linear attention plus dense products of small tiles of queries with
      the halo of keys within distance R. O(N R^2 (m + d)) time with a small constant,
      O(N (m + d)) memory, no cumulative sums. Chebyshev groups only.
    - ``'naive'``: the paper's baseline without tables, one key of each distance at a time. The
      cost of ``'tile'`` with a large constant, and O(N R^2) memory in training; any groups.

    On two CPU cores tiles are 15 times as fast as tables (R = 4, docs/benchmarks.md). Large maps
    compile slowly: ``torch.compile`` unrolls the rows of the tables and the chunks of the tiles.

    Exported graphs contain plain operations with the same result instead, see :mod:`.rows`.

    ``'torch'`` chooses ``'sat'`` for logarithmic groups and for large R, see
    :func:`choose_algorithm`, and ``'tile'`` otherwise.

    Args:
        q, k: feature-mapped queries and keys, (B, heads, N, m), any strides; float16, bfloat16,
            float32 or float64. Half types are computed in float32, except in the reference
            implementation. They must not be negative: the reference implementation raises an error;
            the others compute the formula, whose normaliser may then come close to 0.
        v: values (B, heads, N, d_v), same dtype.
        weights: spatial weights (B, heads, N, R + 1), R >= 0, any floating dtype, see
            :func:`stick_breaking`. With ``stick``, its logits (B, heads, N, R).
        hw_shape: (H, W) with H * W == N.
        groups: ``'chebyshev'``: group r is distance r. ``'log'``: group 0 is distance 0, group g
            is distances 2^(g-1) to 2^g - 1.
        stick: ``None``: ``weights`` are weights. ``'offset'`` or ``'plain'``: they are logits of
            ``stick_breaking(weights, offset=stick == 'offset')``, which the kernels compute without
            storing the weights.
        key_padding_mask: (B, N) bool, True = padding.
        eps: added to the normaliser.
        backend: ``'auto'``, ``'reference'``, ``'torch'``, ``'triton'``, ``'tile'``, ``'sat'`` or
            ``'naive'``.

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
    options = RippleOptions(hw_shape, groups, stick, key_padding_mask, eps)
    options = _checked(q, k, v, weights, options)

    def unsupported_reason() -> Optional[str]:
        from .triton_ops import unsupported_reason

        return unsupported_reason(q, v, weights, options)

    trial = partial(_trial, q, k, v, weights, options)
    chosen = choose_backend('ripple_attention', backend, q, unsupported_reason, ALGORITHMS, trial)
    if chosen == 'reference':
        return ripple_reference(q, k, v, weights, options)
    if chosen != 'triton':
        return _ripple_torch(q, k, v, weights, options, chosen)
    from .triton_ops import ripple_triton

    kernels = partial(ripple_triton, options=options)
    torch_form = partial(_ripple_torch, options=options)
    return run_kernels('ripple_attention', backend, kernels, torch_form, q, k, v, weights)


def _ripple_torch(
    q: Tensor, k: Tensor, v: Tensor, weights: Tensor, options: RippleOptions, backend: str = 'torch'
) -> Tensor:
    """Compute it by a named algorithm, or by the one that suits the sizes."""
    if is_exporting():  # plain operations with the same result
        return ripple_rows(q, k, v, weights, options)
    if backend == 'torch':
        max_distance = weights.shape[-1] - int(options.stick is None)
        backend = choose_algorithm(max_distance, q.shape[-1], options.hw_shape, options.groups)
    algorithm = {'tile': ripple_tile, 'sat': ripple_sat, 'naive': ripple_naive}[backend]
    return algorithm(q, k, v, weights, options)


def _trial(q: Tensor, k: Tensor, v: Tensor, weights: Tensor, options: RippleOptions) -> Trial:
    """Return small calls that launch the same kernels."""
    dim, rings = q.shape[-1], weights.shape[-1]

    def run(backend: str, hw_shape: Tuple[int, int], mask: Optional[Tensor], q, k, v, w) -> Tensor:
        from .triton_ops import ripple_triton

        small = replace(options, hw_shape=hw_shape, key_padding_mask=mask)
        w = w.sigmoid() if options.stick is None else w  # weights, or their logits
        form = ripple_triton if backend == 'triton' else _ripple_torch
        return form(q.sigmoid(), k.sigmoid(), v, w, small)

    return Trial(
        variant=f'{rings} rings, stick {options.stick}, head dim {dim}',
        dtype=q.dtype,
        masked=options.key_padding_mask is not None,
        training=needs_gradient(q, k, v, weights),
        shapes=lambda batch, n: [(batch, 2, n, dim)] * 3 + [(batch, 2, n, rings)],
        run=run,
    )


def softmax_ripple_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    weights: Tensor,
    *,
    hw_shape: Tuple[int, int],
    groups: str = 'chebyshev',
    stick: Optional[str] = None,
    key_padding_mask: Optional[Tensor] = None,
    backend: str = 'auto',
) -> Tensor:
    """Compute softmax attention with a weight for each ring of distance, the softmax counterpart of
    :func:`ripple_attention` (Zheng et al., ICML 2022, appendix)::

        a_im = w_{g(i, m)}(i) exp(q_i . k_m / sqrt(d))
        out_i = sum_m a_im v_m / sum_m a_im

    It is quadratic in the number of tokens: one call of torch's SDPA with ``log w`` as bias.

    Args:
        q, k: projected queries and keys (B, heads, N, d), without a feature map.
        v, weights, hw_shape, groups, stick, key_padding_mask: see :func:`ripple_attention`. A
            weight of 0 excludes its keys; a query without keys yields 0.
        backend: ``'auto'``, ``'reference'`` or ``'torch'``.

    Returns:
        (B, heads, N, d_v) in the dtype of ``q``.

    Raises:
        ValueError, TypeError, BackendError: see :func:`ripple_attention`.

    Example:
        >>> import torch
        >>> q, k, v = torch.randn(3, 2, 4, 6 * 5, 16)
        >>> weights = stick_breaking(torch.randn(2, 4, 6 * 5, 3))
        >>> softmax_ripple_attention(q, k, v, weights, hw_shape=(6, 5)).shape
        torch.Size([2, 4, 30, 16])
    """
    check_groups(groups, backend)
    options = RippleOptions(hw_shape, groups, stick, key_padding_mask, 0.0)
    options = _checked(q, k, v, weights, options)
    backend = choose_backend('softmax_ripple_attention', backend, q)
    attend = softmax_ripple_reference if backend == 'reference' else softmax_ripple
    return attend(q, k, v, weights, options)


def _checked(
    q: Tensor, k: Tensor, v: Tensor, weights: Tensor, options: RippleOptions
) -> RippleOptions:
    """Check the arguments and return the options with (H, W) as integers."""
    check_qkv(q, k, v, options.key_padding_mask)
    hw_shape = check_hw_shape(q.shape[2], options.hw_shape, 'q')
    stick = options.stick
    if stick not in STICKS:
        raise ValueError(f'stick must be one of {STICKS}, got {stick!r}')
    smallest, last = (1, 'R + 1') if stick is None else (0, 'R')
    if weights.dim() != 4 or weights.shape[:3] != q.shape[:3] or weights.shape[3] < smallest:
        raise ValueError(
            f'weights must have shape (B, heads, N, {last}) = '
            f'({", ".join(map(str, q.shape[:3]))}, {last}) with R >= 0, '
            f'got {tuple(weights.shape)} with stick={stick!r}'
        )
    if not weights.is_floating_point() or weights.device != q.device:
        raise ValueError(
            f'weights must be floats on {q.device}, got {weights.dtype} on {weights.device}'
        )
    return RippleOptions(hw_shape, options.groups, stick, options.key_padding_mask, options.eps)


def check_backend(backend: str, groups: str) -> None:
    """Raise ValueError unless backend and groups are known and compatible."""
    check_operator_backend(backend, ALGORITHMS)
    check_groups(groups, backend)


def choose_algorithm(
    max_distance: int, num_features: int, hw_shape: Tuple[int, int], groups: str
) -> str:
    """Return the algorithm of ``backend='torch'``: ``'sat'`` or ``'tile'``.

    Tiles cost R^2, tables cost R m; the measured crossing is at about R = 20 + m / 2. Time of sat
    over time of tile, forward and backward, on one CPU core, 64 x 64 tokens, m = d:

    ====== ===== ===== ====== ====== ======
    m      R = 4 R = 8 R = 16 R = 24 R = 32
    ====== ===== ===== ====== ====== ======
    16     3.6   3.2   2.1    1.3    0.7
    32     14.7  5.9   3.2    2.0    1.3
    ====== ===== ===== ====== ====== ======
    """
    if groups != 'chebyshev':
        return 'sat'
    # Distances beyond the map cost nothing.
    max_distance = min(max_distance, max(hw_shape) - 1)
    return 'sat' if max_distance > 20 + num_features / 2 else 'tile'
