"""Linear attention, rank-augmented (RALA), magnitude-aware (MALA) and unnormalised."""

from typing import Optional

import torch
from torch import Tensor

from ..common.checks import check_qkv
from ..common.dispatch import choose_backend
from ..common.feature_maps import FEATURE_MAPS, KERNEL_FEATURES
from ..common.feature_maps import feature_map as get_feature_map
from ..common.launch_table import unsupported_tokens
from ..common.packed import PackedShapes, check_packed
from ..common.rotary import Rotary, check_rotary
from .options import LinearOptions
from .reference import linear_reference, mala_reference
from .torch_impl import linear_torch, unnormalised_attention

__all__ = ['linear_attention', 'mala_attention', 'rala_attention', 'unnormalised_attention']

# Kernels by kind of attention; names are those of the launch table.
_NAMES = ('kv_state', 'query_output', 'query_backward', 'key_backward')
KERNELS = {
    '': _NAMES,
    'mala': tuple(f'mala_{name}' for name in _NAMES),
    'rala': (
        'query_mean', 'rala_kv_state', 'rala_query_output', 'rala_query_sums',
        'rala_key_backward', 'rala_query_backward',
    ),
}  # fmt: skip


def linear_attention(
    q: Tensor, k: Tensor, v: Tensor, *,
    key_padding_mask: Optional[Tensor] = None, eps: float = 1e-6, feature_map: str = 'identity',
    rotary: Optional[Rotary] = None, mean_normaliser: bool = False, cross: bool = False,
    packed: Optional[PackedShapes] = None, backend: str = 'auto',
) -> Tensor:  # fmt: skip
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
        packed: map sizes of images that follow each other in a batch of 1, without a mask; each
            attends to itself only. See :class:`mmlinattn.ops.PackedShapes`.
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
        key_padding_mask, eps, feature_map, rotary, mean_normaliser=mean_normaliser,
        num_keys=_num_keys(k, cross), packed=packed,
    )  # fmt: skip
    return _run('linear_attention', backend, q, k, v, options)


def rala_attention(
    q: Tensor, k: Tensor, v: Tensor, *,
    rotary: Optional[Rotary] = None, key_padding_mask: Optional[Tensor] = None, eps: float = 1e-6,
    feature_map: str = 'elu+1', token_weights: Optional[Tensor] = None, cross: bool = False,
    packed: Optional[PackedShapes] = None, backend: str = 'auto',
) -> Tensor:  # fmt: skip
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
        feature_map: ``'elu+1'`` (the paper's), ``'relu'`` or ``'softmax'`` (table 9).
        token_weights: replaces ``a`` (table 10): broadcastable to (B, heads, N), mean 1 over the
            tokens. Ones switch the augmentation of keys and values off.
        v, rotary, key_padding_mask, eps, cross, packed, backend: see :func:`linear_attention`, also
            for dtypes and errors.

    Returns:
        (B, heads, N, d_v) in the dtype of ``q``.

    Example:
        >>> import torch
        >>> q, k, v = torch.randn(3, 2, 4, 6 * 5, 16)
        >>> rala_attention(q, k, v, rotary=Rotary((6, 5), 16)).shape
        torch.Size([2, 4, 30, 16])
    """
    options = LinearOptions(
        key_padding_mask, eps, feature_map, rotary, kind='rala',
        token_weights=token_weights, num_keys=_num_keys(k, cross), packed=packed,
    )  # fmt: skip
    return _run('rala_attention', backend, q, k, v, options)


def mala_attention(
    q: Tensor, k: Tensor, v: Tensor, *,
    rotary: Optional[Rotary] = None, key_padding_mask: Optional[Tensor] = None, eps: float = 1e-6,
    feature_map: str = 'elu+1', cross: bool = False, packed: Optional[PackedShapes] = None,
    backend: str = 'auto',
) -> Tensor:  # fmt: skip
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
        eps: added to the divisor.
        feature_map: ``'elu+1'`` (the paper's), ``'relu'`` or ``'softmax'``.
        v, rotary, key_padding_mask, cross, packed, backend: see :func:`linear_attention`, also for
            dtypes and errors.

    Returns:
        (B, heads, N, d_v) in the dtype of ``v``.

    Example:
        >>> import torch
        >>> q, k, v = torch.randn(3, 2, 4, 6 * 5, 16)
        >>> mala_attention(q, k, v, rotary=Rotary((6, 5), 16)).shape
        torch.Size([2, 4, 30, 16])
    """
    options = LinearOptions(
        key_padding_mask, eps, feature_map, rotary, kind='mala',
        num_keys=_num_keys(k, cross), packed=packed,
    )  # fmt: skip
    return _run('mala_attention', backend, q, k, v, options)


def _num_keys(k: Tensor, cross: bool) -> Optional[int]:
    """Return M of cross-attention, else None; the checks of ``k`` follow."""
    return k.shape[2] if cross and k.dim() == 4 else None


def _run(
    operator: str, backend: str, q: Tensor, k: Tensor, v: Tensor, options: LinearOptions
) -> Tensor:
    """Check the arguments and run the chosen implementation."""
    rotary, packed, mask = options.rotary, options.packed, options.key_padding_mask
    check_qkv(q, k, v, mask, options.num_keys is not None)
    if rotary is not None or packed is not None:
        if options.num_keys is not None:
            name = 'packed' if rotary is None else 'rotary'
            rest = 'has the positions of one map; it must be None with cross=True'
            raise ValueError(f'{name} {rest}')
        if packed is not None:
            check_packed(packed, q, mask, 2, 'q')
        check_rotary(rotary, q, packed)
    if not isinstance(options.feature_map, str) or options.feature_map not in FEATURE_MAPS:
        get_feature_map(options.feature_map)  # raises
    if options.token_weights is not None:
        _check_token_weights(options.token_weights, k)
    chosen = choose_backend(operator, backend, q, _unsupported_reason, q, v, options)
    if chosen == 'triton':
        return _run_kernels(q, k, v, options)
    reference = mala_reference if options.kind == 'mala' else linear_reference
    form = linear_torch if chosen == 'torch' else reference
    if packed is None:
        return form(q, k, v, options)
    images = zip(*(packed.split(x, 2) for x in (q, k, v)), options.images())
    # In the memory layout (B, N, heads, d), which the output projection reads.
    return torch.cat([form(*image).transpose(1, 2) for image in images], 1).transpose(1, 2)


def _check_token_weights(weights: Tensor, k: Tensor) -> None:
    try:
        weights.expand(k.shape[:3])
    except (AttributeError, RuntimeError):
        got = tuple(getattr(weights, 'shape', [type(weights).__name__]))
        shape = f'(B, heads, N) = {tuple(k.shape[:3])}'
        raise ValueError(f'token_weights must be broadcastable to {shape}, got {got}') from None


def _unsupported_reason(q: Tensor, v: Tensor, options: LinearOptions) -> Optional[str]:
    """Return why the kernels cannot serve the call, or None if they can."""
    rotary = options.rotary
    if options.token_weights is not None:
        return 'token_weights have no kernel'
    if options.feature_map not in KERNEL_FEATURES:
        known = tuple(KERNEL_FEATURES)
        return f'feature_map {options.feature_map!r} has no kernel, these have: {known}'
    if options.eps < 1e-20:  # its quotients are infinite in the rows beyond the last token
        return f'eps={options.eps} has no kernel'
    if rotary is not None and (options.packed or rotary).num_extra_tokens:
        return 'extra tokens without rotary position have no kernel'
    if rotary is not None and rotary.num_heads > 1:
        return 'rotary position over all channels, before the heads, has no kernel'
    return unsupported_tokens(q, v.shape[3], KERNELS[options.kind])


def _run_kernels(q: Tensor, k: Tensor, v: Tensor, options: LinearOptions) -> Tensor:
    from .triton_kernels import OPERATOR  # imports Triton

    rotary, packed, kind = options.rotary, options.packed, options.kind
    axes = images = None
    width = longest = 0
    if rotary is not None:
        axes = rotary.axes(q.dtype, q.device)
        width = 0 if packed is not None else rotary.hw_shape[1]  # type: ignore[index]
    if packed is not None:
        images, longest = packed.table(q.shape[3] // 4, q.device), max(packed.lengths)
    kernel_options = OPERATOR.options(
        width, longest, kind, options.feature_map, float(options.eps),
        mean_normaliser=kind != '' or options.mean_normaliser, cross=options.num_keys is not None,
    )  # fmt: skip
    return OPERATOR(kernel_options, q, k, v, options.key_padding_mask, images, axes)
