"""Attention through anchors: random walk graph kernel attention and Nystrom attention."""

from numbers import Real
from typing import Optional, Tuple

from torch import Tensor

from ...utils import check_integer
from ..common.checks import check_qkv
from ..common.dispatch import choose_backend
from ..common.launch_table import MAX_DIM, unsupported_tokens
from ..common.numerics import needs_gradient
from .anchor_solver import Walk
from .reference import nystrom_reference, random_walk_reference
from .torch_impl import nystrom_torch, random_walk_torch

__all__ = ['check_walk', 'nystrom_attention', 'random_walk_attention']

MAX_DECAY = 0.999  # of a walk of unlimited length
FORWARD = ('anchor_state', 'anchor_solver', 'anchor_output')
KERNELS = (*FORWARD, 'anchor_output_backward', 'anchor_solver_backward', 'anchor_backward')


def random_walk_attention(
    q: Tensor, k: Tensor, v: Tensor, anchors_q: Tensor, anchors_k: Tensor, *,
    decay: float = 0.1, steps: Optional[int] = None, key_padding_mask: Optional[Tensor] = None,
    cross: bool = False, backend: str = 'auto',
) -> Tensor:  # fmt: skip
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
        decay: l in (0, 1), without ``steps`` at most 0.999; the paper's tables use 0.1.
        steps: None for unlimited length, or the largest number of steps.
        key_padding_mask: (B, N) bool, True = padding.
        cross: keys and values are other tokens than the queries, (B, heads, K, ...), and the mask
            (B, K) is theirs. No Triton implementation.
        backend: ``'auto'``, ``'reference'``, ``'torch'`` or ``'triton'``.

    Returns:
        (B, heads, N, d_v) in the dtype of ``q``.

    Raises:
        ValueError: decay outside (0, 1), steps < 1, unknown backend; shapes, dtypes or devices do
            not match.
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
    check_walk(decay, steps)
    check_anchors(q, anchors_q=anchors_q, anchors_k=anchors_k)
    options = Walk(float(decay), steps)
    tensors = q, k, v, anchors_q, anchors_k
    chosen = choose_backend(
        'random_walk_attention', backend, q, _unsupported_reason, tensors, cross
    )
    if chosen == 'triton':
        from .triton_kernels import OPERATOR  # imports Triton

        # The kernels round anchors to the dtype of q.
        if anchors_q.dtype != anchors_k.dtype:
            anchors_q, anchors_k = anchors_q.float(), anchors_k.float()
        anchors_q, anchors_k = anchors_q.contiguous(), anchors_k.contiguous()
        return OPERATOR(options, q, k, v, anchors_q, anchors_k, key_padding_mask)
    form = random_walk_torch if chosen == 'torch' else random_walk_reference
    return form(*tensors, options, key_padding_mask, cross)


def _unsupported_reason(tensors: Tuple[Tensor, ...], cross: bool) -> Optional[str]:
    """Return why the kernels cannot serve the call, or None if they can."""
    num_anchors = tensors[3].shape[-2]
    if cross:
        return 'cross-attention through anchors has no kernel'
    if num_anchors > MAX_DIM:
        return f'kernels support at most {MAX_DIM} anchors, got {num_anchors}'
    kernels = KERNELS if needs_gradient(*tensors) else FORWARD
    return unsupported_tokens(tensors[0], tensors[2].shape[3], kernels, num_anchors)


def nystrom_attention(
    q: Tensor, k: Tensor, v: Tensor, landmarks_q: Tensor, landmarks_k: Tensor, *,
    iterations: int = 6, key_padding_mask: Optional[Tensor] = None, backend: str = 'auto',
) -> Tensor:  # fmt: skip
    """Compute the Nystrom approximation of softmax attention with M landmarks, "Nyströmformer"
    (Xiong et al., AAAI 2021), equation 13; O(N M d)::

        out = softmax(q k~^T) softmax(q~ k~^T)^+ softmax(q~ k^T) v,    all logits over sqrt(d)

    A third-order iteration computes the pseudo-inverse. Its initial scale is chosen per head and
    image; the release chooses one for the batch, so that an image changes the result of another.
    Padded tokens are excluded from the softmax over the tokens; an image of padding only yields 0.

    Args:
        q, k: as in :func:`random_walk_attention`. Products between landmarks are torch's and follow
            ``torch.set_float32_matmul_precision`` on a GPU.
        v: values (B, heads, N, d_v), same dtype.
        landmarks_q, landmarks_k: q~ and k~, (heads, M, d) or (B, heads, M, d), any floating dtype.
        iterations: iterations of the pseudo-inverse.
        key_padding_mask: (B, N) bool, True = padding.
        backend: ``'auto'``, ``'reference'`` or ``'torch'``.

    Returns:
        (B, heads, N, d_v) in the dtype of ``q``.

    Raises:
        ValueError: fewer than one iteration, and as :func:`random_walk_attention`.
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
    iterations = check_integer('iterations', iterations)
    chosen = choose_backend('nystrom_attention', backend, q)
    form = nystrom_reference if chosen == 'reference' else nystrom_torch
    return form(q, k, v, landmarks_q, landmarks_k, iterations, key_padding_mask)


def check_walk(decay: float, steps: Optional[int]) -> None:
    """Raise ValueError or TypeError unless the options of a random walk are valid."""
    if not isinstance(decay, Real) or not 0 < decay < 1:
        raise ValueError(f'decay must be in (0, 1), got {decay!r}')
    if steps is None and decay > MAX_DECAY:
        raise ValueError(
            f'decay must be at most {MAX_DECAY} in a walk without steps, as its rounding errors '
            f'grow by 1 / (1 - decay), got {decay!r}: set steps, or a smaller decay'
        )
    if steps is not None and (isinstance(steps, bool) or not isinstance(steps, int)):
        raise TypeError(f'steps must be None or an integer, got {steps!r}')
    if steps is not None and steps < 1:
        raise ValueError(f'steps must be None or at least 1, got {steps}')


def check_anchors(q: Tensor, **both: Tensor) -> None:
    """Raise ValueError unless both anchors are (heads, M, d) or (B, heads, M, d) with one M."""
    batch, heads, _, dim = q.shape
    for name, anchors in both.items():
        shape = anchors.shape
        # By length: an exported graph must not compare its symbolic batch size with the heads.
        lead = (heads,) if len(shape) == 3 else (batch, heads)
        if shape[:-2] != lead or shape[-1] != dim or shape[-2] < 1:
            raise ValueError(
                f'{name} must have shape (heads, M, d) = ({heads}, M, {dim}) or '
                f'({batch}, {heads}, M, {dim}) with M >= 1, got {tuple(shape)}'
            )
        if anchors.device != q.device:
            raise ValueError(f'{name} is on {anchors.device}, q is on {q.device}')
    (first, a), (second, b) = both.items()
    if a.shape[-2] != b.shape[-2]:
        raise ValueError(f'{first} has {a.shape[-2]} anchors, {second} has {b.shape[-2]}')
