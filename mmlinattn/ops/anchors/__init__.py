"""Random walk graph kernel attention."""

from types import ModuleType
from typing import Optional

from torch import Tensor

from ..common.checks import check_qkv
from ..common.dispatch import Operator
from .options import WalkOptions, check_walk
from .torch_impl import random_walk_portable
from .reference import random_walk_reference

__all__ = ['check_anchors', 'check_walk', 'random_walk_attention']


def _kernels() -> ModuleType:
    from . import triton_ops as fused

    return fused


_random_walk = Operator(
    'random_walk_attention', random_walk_reference, random_walk_portable, _kernels
)


def random_walk_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    anchors_q: Tensor,
    anchors_k: Tensor,
    *,
    decay: float = 0.1,
    steps: Optional[int] = None,
    solver: str = 'series',
    key_padding_mask: Optional[Tensor] = None,
    backend: str = 'auto',
) -> Tensor:
    """Random walks over the graph that M anchors span between N tokens, "Improving Vision
    Attention with Random Walk Graph Kernel"; O(N M (d + M)).

    ``G_Q = softmax_anchors(q anchors_k^T)`` and ``G_K = softmax_tokens(anchors_q k^T)`` make the
    row-stochastic transition ``A = G_Q G_K``. With the decay l, the walk of any length is::

        out = (1 - l) (I - l A)^-1 A v = (1 - l) G_Q (I - l G_K G_Q)^-1 G_K v

    and the walk of at most n steps ``(1 - l) / (1 - l^n) sum_{i=1..n} l^(i-1) A^i v``. Both
    weight the values with numbers that sum to 1. One step is plain softmax-linear attention.

    Padded tokens are left out of the token softmax; an image that is all padding yields 0.

    Args:
        q, k: projected tokens, (B, heads, N, d), any strides; float16, bfloat16, float32 or
            float64. Softmaxes, sums and the M x M matrices are in float32 for half types (all but
            the reference form).
        v: values (B, heads, N, d_v) of the same type.
        anchors_q: B_Q, the queries that read the tokens: (heads, M, d) or (B, heads, M, d).
        anchors_k: B_K, the keys that the queries look up, same shape; of any floating type. The
            fused form's products round both to the type of ``q``, as autocast does to weights.
        decay: l in (0, 1); the paper's tables use 0.1.
        steps: None for any length, or the largest number of steps.
        solver: how the fast forms invert ``I - l G_K G_Q``: ``'series'``, a product of
            ``I + (l W)^(2^i)`` to the precision of the type (matrix products only, exportable), or
            ``'solve'``, :func:`torch.linalg.solve`. Unused where ``steps`` is given.
        key_padding_mask: (B, N) bool, True = padding.
        backend: ``'auto'``, ``'reference'``, ``'portable'`` or ``'fused'``.

    Returns:
        (B, heads, N, d_v) in the type of ``q``.

    Raises:
        ValueError: a decay outside (0, 1), steps < 1, an unknown solver or backend, shapes, types
            or devices that do not fit.
        TypeError: steps that are no integer, a padding mask that is not bool.
        BackendError: a forced backend that cannot serve.

    Example:
        >>> import torch
        >>> q, k, v = torch.randn(3, 2, 4, 6 * 5, 16)
        >>> anchors = torch.randn(4, 8, 16)
        >>> random_walk_attention(q, k, v, anchors, anchors, decay=0.5).shape
        torch.Size([2, 4, 30, 16])
    """
    check_qkv(q, k, v, key_padding_mask)
    check_walk(decay, steps, solver)
    check_anchors(q, anchors_q=anchors_q, anchors_k=anchors_k)
    options = WalkOptions(decay, steps, solver, key_padding_mask)
    return _random_walk(backend, q, k, v, anchors_q, anchors_k, options)


def check_anchors(q: Tensor, **both: Tensor) -> None:
    """Raises ValueError unless both, by the names of the arguments, are (heads, M, d) or
    (B, heads, M, d) of the same M, beside q (B, heads, N, d)."""
    batch, heads, _, dim = q.shape
    for name, anchors in both.items():
        shape = tuple(anchors.shape)
        # By length first: a batch of an exported graph must not be compared with the heads.
        lead = (heads,) if len(shape) == 3 else (batch, heads)
        if shape[:-2] != lead or shape[-1] != dim or shape[-2] < 1:
            raise ValueError(
                f'{name} must have shape (heads, M, d) = ({heads}, M, {dim}) or '
                f'({batch}, {heads}, M, {dim}) with M >= 1, got {shape}'
            )
        if anchors.device != q.device:
            raise ValueError(f'{name} is on {anchors.device}, q is on {q.device}')
    (first, a), (second, b) = both.items()
    if a.shape[-2] != b.shape[-2]:
        raise ValueError(f'{first} has {a.shape[-2]} anchors, {second} has {b.shape[-2]}')
