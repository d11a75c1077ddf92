"""Attention through anchors: random walk graph kernel attention and Nystrom attention."""

from dataclasses import replace
from functools import partial
from typing import Any, Callable, Optional, Tuple

from torch import Tensor

from ...utils import check_integer
from ..common.checks import check_qkv
from ..common.dispatch import choose_backend
from ..common.kernel_check import Trial
from ..common.kernel_fallback import run_kernels
from ..common.numerics import needs_gradient
from .options import NystromOptions, WalkOptions, check_walk
from .reference import nystrom_reference, random_walk_reference
from .torch_impl import attend_by_matrix_torch, nystrom_torch, random_walk_torch

__all__ = ['check_walk', 'nystrom_attention', 'random_walk_attention']


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
    cross: bool = False,
    backend: str = 'auto',
) -> Tensor:
    """Compute random walk graph kernel attention, "Improving Vision Attention with Random Walk
    Graph Kernel"; O(N M (d + M)).

    M anchors span a graph between the N tokens. ``G_Q = softmax_anchors(q anchors_k^T)`` and
    ``G_K = softmax_tokens(anchors_q k^T)`` form the row-stochastic transition ``A = G_Q G_K``. With
    the decay l, the walk of unlimited length is::

        out = (1 - l) (I - l A)^-1 A v = (1 - l) G_Q (I - l G_K G_Q)^-1 G_K v

    and the walk of at most n steps ``(1 - l) / (1 - l^n) sum_{i=1..n} l^(i-1) A^i v``. Both
    weight the values with numbers that sum to 1. One step is softmax-linear attention.

    With ``cross`` the first step leads from a query to a key, ``G_Q G_K``, and all further steps
    from key to key, ``softmax_anchors(k anchors_k^T) G_K``.

    Padded tokens are excluded from the token softmax; an image of padding only yields 0.

    Args:
        q, k: projected tokens, (B, heads, N, d), any strides; float16, bfloat16, float32 or
            float64. Softmaxes, sums and M x M matrices are in float32 for half types, except in
            the reference implementation.
        v: values (B, heads, N, d_v), same dtype.
        anchors_q: B_Q, the queries of the anchors to the tokens: (heads, M, d) or (B, heads, M, d).
        anchors_k: B_K, the keys of the anchors for the queries, same shape; any floating dtype. The
            Triton implementation rounds both to the dtype of ``q``, as autocast does with weights.
        decay: l in (0, 1); the paper's tables use 0.1.
        steps: None for unlimited length, or the largest number of steps.
        solver: how the fast implementations invert ``I - l G_K G_Q``: ``'series'``, a product of
            ``I + (l W)^(2^i)`` to the precision of the dtype (matrix products only, exportable), or
            ``'solve'``, :func:`torch.linalg.solve`. Unused with ``steps``.
        key_padding_mask: (B, N) bool, True = padding.
        cross: keys and values are other tokens than the queries, (B, heads, K, ...), and the mask
            (B, K) is theirs. No Triton implementation.
        backend: ``'auto'``, ``'reference'``, ``'torch'`` or ``'triton'``.

    Returns:
        (B, heads, N, d_v) in the dtype of ``q``.

    Raises:
        ValueError: decay outside (0, 1), steps < 1, unknown solver or backend; shapes, dtypes or
            devices do not match.
        TypeError: ``steps`` is not an integer, or the padding mask is not bool.
        BackendError: the requested backend cannot serve the call.

    Example:
        >>> import torch
        >>> q, k, v = torch.randn(3, 2, 4, 6 * 5, 16)
        >>> anchors = torch.randn(4, 8, 16)
        >>> random_walk_attention(q, k, v, anchors, anchors, decay=0.5).shape
        torch.Size([2, 4, 30, 16])
    """
    check_qkv(q, k, v, key_padding_mask, cross)
    check_walk(decay, steps, solver)
    check_anchors(q, anchors_q=anchors_q, anchors_k=anchors_k)
    options = WalkOptions(decay, steps, solver, key_padding_mask, cross)
    forms = random_walk_reference, random_walk_torch, 'random_walk_triton'
    return _run('random_walk_attention', backend, forms, options, q, k, v, anchors_q, anchors_k)


def nystrom_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    landmarks_q: Tensor,
    landmarks_k: Tensor,
    *,
    iterations: int = 6,
    key_padding_mask: Optional[Tensor] = None,
    backend: str = 'auto',
) -> Tensor:
    """Compute the Nystrom approximation of softmax attention with M landmarks, "Nyströmformer"
    (Xiong et al., AAAI 2021), equation 13; O(N M d)::

        out = softmax(q k~^T) softmax(q~ k~^T)^+ softmax(q~ k^T) v,    all logits over sqrt(d)

    A third-order iteration computes the pseudo-inverse. Its initial scale is chosen per head and
    image; the release chooses one for the batch, so that an image changes the result of another.
    Padded tokens are excluded from the softmax over the tokens; an image of padding only yields 0.

    Args:
        q, k: projected tokens, (B, heads, N, d), any strides; float16, bfloat16, float32 or
            float64. Softmaxes, sums and M x M matrices are in float32 for half types, except in the
            reference implementation. Products between landmarks are torch's and follow
            ``torch.set_float32_matmul_precision`` on a GPU.
        v: values (B, heads, N, d_v), same dtype.
        landmarks_q, landmarks_k: q~ and k~, (heads, M, d) or (B, heads, M, d), any floating dtype.
        iterations: iterations of the pseudo-inverse.
        key_padding_mask: (B, N) bool, True = padding.
        backend: ``'auto'``, ``'reference'``, ``'torch'`` or ``'triton'``.

    Returns:
        (B, heads, N, d_v) in the dtype of ``q``.

    Raises:
        ValueError: fewer than one iteration, unknown backend; shapes, dtypes or devices do not
            match.
        TypeError: the padding mask is not bool.
        BackendError: the requested backend cannot serve the call.

    Example:
        >>> import torch
        >>> q, k, v = torch.randn(3, 2, 4, 30, 16)
        >>> landmarks_q, landmarks_k = torch.randn(2, 4, 8, 16)
        >>> nystrom_attention(q, k, v, landmarks_q, landmarks_k).shape
        torch.Size([2, 4, 30, 16])
    """
    check_qkv(q, k, v, key_padding_mask)
    check_anchors(q, landmarks_q=landmarks_q, landmarks_k=landmarks_k)
    options = NystromOptions(check_integer('iterations', iterations), key_padding_mask)
    forms = nystrom_reference, nystrom_torch, 'nystrom_triton'
    inner = partial(attend_by_matrix_torch, mask=key_padding_mask)
    tensors = q, k, v, landmarks_q, landmarks_k
    return _run('nystrom_attention', backend, forms, options, *tensors, inner_form=inner)


def _run(
    operator: str,
    backend: str,
    forms: Tuple[Callable[..., Tensor], Callable[..., Tensor], str],
    options: Any,
    *tensors: Tensor,
    inner_form: Optional[Callable[..., Tensor]] = None,
) -> Tensor:
    """Run one of the forms: reference, torch, or the name of the one in :mod:`.triton_ops`."""
    reference, torch_form, name = forms

    def unsupported_reason() -> Optional[str]:
        if getattr(options, 'cross', False):
            return 'cross-attention through anchors has no kernel'
        from .triton_ops import unsupported_reason

        return unsupported_reason(*tensors)

    def triton_form(*tensors: Tensor, options: Any = options) -> Tensor:
        from . import triton_ops

        return getattr(triton_ops, name)(*tensors, options)

    def trial() -> Trial:
        return _trial(triton_form, torch_form, options, *tensors)

    chosen = choose_backend(operator, backend, tensors[0], unsupported_reason, trial=trial)
    if chosen == 'reference':
        return reference(*tensors, options)
    plain = partial(torch_form, options=options)
    if chosen == 'torch':
        return plain(*tensors)
    return run_kernels(operator, backend, triton_form, plain, *tensors, inner_form=inner_form)


def _trial(
    triton_form: Callable[..., Tensor],
    torch_form: Callable[..., Tensor],
    options: Any,
    *tensors: Tensor,
) -> Trial:
    """Return small calls that launch the same kernels."""
    q, anchors = tensors[0], tensors[3]
    count, dim = anchors.shape[-2:]
    own = (2, 2)[4 - anchors.dim() :]  # heads, or images and heads

    def run(backend: str, hw_shape: Tuple[int, int], mask: Optional[Tensor], *small) -> Tensor:
        form = triton_form if backend == 'triton' else torch_form
        return form(*small, options=replace(options, key_padding_mask=mask))

    one_step = ', one step' if getattr(options, 'steps', None) == 1 else ''
    return Trial(
        variant=f'{count} anchors, head dim {dim}{one_step}',
        dtype=q.dtype,
        masked=options.key_padding_mask is not None,
        training=needs_gradient(*tensors),
        shapes=lambda batch, n: [(batch, 2, n, dim)] * 3 + [(*own, count, dim)] * 2,
        run=run,
    )


def check_anchors(q: Tensor, **both: Tensor) -> None:
    """Raise ValueError unless both anchors are (heads, M, d) or (B, heads, M, d) with the same M.

    Args:
        q: (B, heads, N, d).
        both: the two anchors by the names of their arguments.
    """
    batch, heads, _, dim = q.shape
    for name, anchors in both.items():
        shape = tuple(anchors.shape)
        # By length: an exported graph must not compare its symbolic batch size with the heads.
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
