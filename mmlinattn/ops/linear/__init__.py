"""Linear attention, rank-augmented (RALA), magnitude-aware (MALA) and unnormalised."""

from functools import partial
from typing import Callable, List, Optional, Tuple

import torch
from torch import Tensor

from ..common.checks import check_qkv
from ..common.dispatch import choose_backend
from ..common.feature_maps import feature_map as get_feature_map
from ..common.kernel_check import Trial
from ..common.kernel_fallback import run_kernels
from ..common.numerics import needs_gradient
from ..common.packed import PackedShapes, check_packed
from ..common.rotary import Rotary, check_rotary
from .options import LinearOptions
from .reference import linear_reference, mala_reference, rala_reference
from .torch_impl import linear_torch, unnormalised_attention

__all__ = ['linear_attention', 'mala_attention', 'rala_attention', 'unnormalised_attention']


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    key_padding_mask: Optional[Tensor] = None,
    eps: float = 1e-6,
    feature_map: str = 'identity',
    rotary: Optional[Rotary] = None,
    mean_normaliser: bool = False,
    cross: bool = False,
    packed: Optional[PackedShapes] = None,
    backend: str = 'auto',
) -> Tensor:
    """Compute linear attention, "Transformers are RNNs" (Katharopoulos et al., ICML 2020).

    With the feature map ``phi``::

        out_i = phi(q_i)^T (sum_j phi(k_j) v_j^T) / (phi(q_i) . sum_j phi(k_j) + eps)

    ``rotary`` rotates the features of the numerator by the position of their token, as RoFormer
    (Su et al., 2021) and RALA do. The features of the normaliser are not rotated and stay positive.

    Padded keys are excluded from both sums; a query whose keys are all padded yields 0. Features
    should not be negative: with signed features the normaliser can come close to 0.

    Args:
        q, k: queries and keys, (B, heads, N, m), any strides; float16, bfloat16, float32 or
            float64. Half types are accumulated in float32, except in the reference implementation.
        v: values (B, heads, N, d_v), same dtype.
        key_padding_mask: (B, N) bool, True = padding.
        eps: added to the normaliser.
        feature_map: ``'elu+1'``, ``'relu'``, ``'softmax'`` (over channels), or ``'identity'`` for
            queries and keys that are features already.
        rotary: positions of the tokens, see :class:`mmlinattn.ops.Rotary`, or None.
        mean_normaliser: take means over the real keys instead of sums. The effect of eps then
            does not depend on the number of keys.
        cross: keys and values are other tokens than the queries, (B, heads, M, ...); the mask
            (B, M) is theirs. Not with ``rotary`` or ``packed``.
        packed: map sizes of images of different sizes, whose tokens follow each other in a batch
            of 1: each image attends to itself only. There is no mask then; see
            :class:`mmlinattn.ops.PackedShapes`.
        backend: ``'auto'``, ``'reference'``, ``'torch'`` or ``'triton'``.

    Returns:
        (B, heads, N, d_v) in the dtype of ``v``.

    Raises:
        ValueError: shapes, dtypes or devices do not match, unknown feature map or backend.
        TypeError: the padding mask is not bool, or ``rotary`` is not a Rotary.
        BackendError: the requested backend cannot serve the call.

    Example:
        >>> import torch
        >>> q, k, v = torch.randn(3, 2, 4, 30, 16)
        >>> linear_attention(q, k, v, feature_map='elu+1').shape
        torch.Size([2, 4, 30, 16])
    """
    options = LinearOptions(
        key_padding_mask,
        eps,
        feature_map,
        rotary,
        mean_normaliser=mean_normaliser,
        num_keys=_num_keys(k, cross),
        packed=packed,
    )
    return _run('linear_attention', backend, linear_reference, q, k, v, options)


def rala_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    rotary: Optional[Rotary] = None,
    key_padding_mask: Optional[Tensor] = None,
    eps: float = 1e-6,
    feature_map: str = 'elu+1',
    token_weights: Optional[Tensor] = None,
    cross: bool = False,
    packed: Optional[PackedShapes] = None,
    backend: str = 'auto',
) -> Tensor:
    """Compute rank-augmented linear attention, "Breaking the Low-Rank Dilemma of Linear Attention"
    (Fan et al., CVPR 2025), equations 6 and 7 with the normaliser of the released code.

    With the feature map ``phi`` and ``a_j = N softmax_j(d^-0.5 mean_i(phi(q_i)) . phi(k_j))``::

        out_i = rot(phi(q_i))^T (1/N sum_j a_j rot(phi(k_j)) v_j^T)
                / (phi(q_i) . (1/N sum_j a_j phi(k_j)) + eps)

    With ``cross``, N is the number of the keys, and the mean is over all queries. Padded tokens
    are excluded from every mean and sum and from N, so the result of an image does
    not depend on its padding. An image of padding only yields 0.

    Args:
        q, k: projected tokens before the feature map, (B, heads, N, d).
        v: values (B, heads, N, d_v), same dtype.
        feature_map: ``'elu+1'`` (the paper's), ``'relu'`` or ``'softmax'`` (table 9).
        token_weights: replaces ``a`` (table 10): broadcastable to (B, heads, N), mean 1 over the
            tokens. Ones switch the augmentation of keys and values off.
        others: see :func:`linear_attention`, also for dtypes and errors.

    Returns:
        (B, heads, N, d_v) in the dtype of ``q``.

    Example:
        >>> import torch
        >>> q, k, v = torch.randn(3, 2, 4, 6 * 5, 16)
        >>> rala_attention(q, k, v, rotary=Rotary((6, 5), 16)).shape
        torch.Size([2, 4, 30, 16])
    """
    options = LinearOptions(
        key_padding_mask,
        eps,
        feature_map,
        rotary,
        True,
        token_weights,
        num_keys=_num_keys(k, cross),
        packed=packed,
    )
    return _run('rala_attention', backend, rala_reference, q, k, v, options)


def mala_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    rotary: Optional[Rotary] = None,
    key_padding_mask: Optional[Tensor] = None,
    eps: float = 1e-6,
    feature_map: str = 'elu+1',
    cross: bool = False,
    packed: Optional[PackedShapes] = None,
    backend: str = 'auto',
) -> Tensor:
    """Compute magnitude-aware linear attention, "Rectifying Magnitude Neglect in Linear Attention"
    (Fan et al., ICCV 2025), with the scales of the released code.

    With the feature map ``phi`` and ``z_i = d^-0.5 phi(q_i) . mean_j(phi(k_j))``::

        out_i = (1 + 1 / (z_i + eps)) d^-0.5 rot(phi(q_i))^T mean_j(rot(phi(k_j)) v_j^T)
                - z_i mean_j(v_j)

    The weights depend on the length of a query, as those of softmax attention do. Without rotary
    position they sum to 1; they may be negative. The paper prints a sum over the keys where the
    code has a mean, which makes the contrast independent of the resolution.

    Padded tokens are excluded from every mean. An image of padding only yields 0.

    Args:
        q, k: projected tokens before the feature map, (B, heads, N, d).
        v: values (B, heads, N, d_v), same dtype.
        eps: added to the divisor.
        feature_map: ``'elu+1'`` (the paper's), ``'relu'`` or ``'softmax'``.
        others: see :func:`linear_attention`, also for dtypes and errors.

    Returns:
        (B, heads, N, d_v) in the dtype of ``v``.

    Example:
        >>> import torch
        >>> q, k, v = torch.randn(3, 2, 4, 6 * 5, 16)
        >>> mala_attention(q, k, v, rotary=Rotary((6, 5), 16)).shape
        torch.Size([2, 4, 30, 16])
    """
    options = LinearOptions(
        key_padding_mask,
        eps,
        feature_map,
        rotary,
        magnitude_aware=True,
        num_keys=_num_keys(k, cross),
        packed=packed,
    )
    return _run('mala_attention', backend, mala_reference, q, k, v, options)


def _num_keys(k: Tensor, cross: bool) -> Optional[int]:
    """Return M of cross-attention, else None; the checks of ``k`` follow."""
    return k.shape[2] if cross and k.dim() == 4 else None


def _run(
    operator: str,
    backend: str,
    reference: Callable[..., Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    options: LinearOptions,
) -> Tensor:
    cross, packed = options.num_keys is not None, options.packed
    check_qkv(q, k, v, options.key_padding_mask, cross)
    if cross and (options.rotary is not None or packed is not None):
        name = 'packed' if options.rotary is None else 'rotary'
        raise ValueError(f'{name} has the positions of one map; it must be None with cross=True')
    check_packed(packed, q, options.key_padding_mask, 2, 'q')
    check_rotary(options.rotary, q.shape[1], q.shape[2], q.shape[3], packed)
    get_feature_map(options.feature_map)

    def unsupported_reason() -> Optional[str]:
        from .triton_ops import unsupported_reason

        return unsupported_reason(q, v, options)

    trial = partial(_trial, q, k, v, options)
    chosen = choose_backend(operator, backend, q, unsupported_reason, trial=trial)
    if chosen == 'reference':
        return _by_image(reference, q, k, v, options)
    torch_form = partial(_by_image, linear_torch, options=options)
    if chosen == 'torch':
        return torch_form(q, k, v)
    from .triton_ops import linear_triton

    kernels = partial(linear_triton, options=options)
    return run_kernels(operator, backend, kernels, torch_form, q, k, v)


def _by_image(
    function: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor, options: LinearOptions
) -> Tensor:
    """Return ``function(q, k, v, options)``, of packed images one by one."""
    packed = options.packed
    if packed is None:
        return function(q, k, v, options)
    images = zip(*(packed.split(x, 2) for x in (q, k, v)), options.images())
    # In the memory layout (B, N, heads, d), which the output projection reads.
    return torch.cat([function(*image).transpose(1, 2) for image in images], 1).transpose(1, 2)


def _trial(q: Tensor, k: Tensor, v: Tensor, options: LinearOptions) -> Trial:
    """Return small calls that launch the same kernels."""
    rotary, dim = options.rotary, q.shape[3]
    cross, is_packed = options.num_keys is not None, options.packed is not None

    def run(backend: str, hw_shape: Tuple[int, int], mask: Optional[Tensor], q, k, v) -> Tensor:
        from .triton_ops import linear_triton

        if options.feature_map == 'identity':
            q, k = q.sigmoid(), k.sigmoid()  # features are not negative
        images = PackedShapes([hw_shape] * 2) if is_packed else None
        position = None if rotary is None else rotary._replace(hw_shape=images or hw_shape)
        small = options._replace(
            key_padding_mask=mask,
            rotary=position,
            num_keys=k.shape[2] if cross else None,
            packed=images,
        )
        if backend == 'triton':
            return linear_triton(q, k, v, small)
        return _by_image(linear_torch, q, k, v, small)

    flags = {'rotary': rotary is not None, 'cross': cross, 'packed': is_packed}
    words = (options.feature_map, f'head dim {dim}', *(word for word, on in flags.items() if on))

    def shapes(batch: int, num_tokens: int) -> List[Tuple[int, ...]]:
        size = (1, 2, batch * num_tokens, dim) if is_packed else (batch, 2, num_tokens, dim)
        return [size] * 3

    return Trial(
        variant=', '.join(words),
        dtype=q.dtype,
        masked=options.key_padding_mask is not None,
        training=needs_gradient(q, k, v),
        shapes=shapes,
        run=run,
    )
