"""Linear attention and its variants: rank-augmented (RALA) and unnormalised."""

from typing import Optional

from torch import Tensor

from ..common.checks import check_qkv
from ..common.dispatch import choose_backend
from ..common.feature_maps import feature_map as get_feature_map
from ..common.rotary import Rotary, check_rotary
from .options import LinearOptions
from .reference import linear_reference, rala_reference
from .torch_impl import linear_torch, unnormalised_attention

__all__ = ['linear_attention', 'rala_attention', 'unnormalised_attention']


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
        key_padding_mask, eps, feature_map, rotary, mean_normaliser=mean_normaliser
    )
    backend = _choose('linear_attention', backend, q, k, v, options)
    if backend == 'reference':
        return linear_reference(q, k, v, options)
    return _torch_or_triton(backend, q, k, v, options)


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
    backend: str = 'auto',
) -> Tensor:
    """Compute rank-augmented linear attention, "Breaking the Low-Rank Dilemma of Linear Attention"
    (Fan et al., CVPR 2025), equations 6 and 7 with the normaliser of the released code.

    With the feature map ``phi`` and ``a_j = N softmax_j(d^-0.5 mean_i(phi(q_i)) . phi(k_j))``::

        out_i = rot(phi(q_i))^T (1/N sum_j a_j rot(phi(k_j)) v_j^T)
                / (phi(q_i) . (1/N sum_j a_j phi(k_j)) + eps)

    Padded tokens are excluded from every mean and sum and from N, so the result of an image does
    not depend on its padding. An image of padding only yields 0.

    Args:
        q, k: projected tokens before the feature map, (B, heads, N, d), any strides; float16,
            bfloat16, float32 or float64. Half types are accumulated in float32, except in the
            reference implementation.
        v: values (B, heads, N, d_v), same dtype.
        rotary: positions of the tokens, see :class:`mmlinattn.ops.Rotary`.
        key_padding_mask: (B, N) bool, True = padding.
        eps: added to the normaliser.
        feature_map: ``'elu+1'`` (the paper's), ``'relu'`` or ``'softmax'`` (table 9).
        token_weights: replaces ``a`` (table 10): broadcastable to (B, heads, N), mean 1 over the
            tokens. Ones switch the augmentation of keys and values off.
        backend: ``'auto'``, ``'reference'``, ``'torch'`` or ``'triton'``.

    Returns:
        (B, heads, N, d_v) in the dtype of ``q``.

    Raises:
        ValueError: shapes, dtypes or devices do not match, unknown feature map or backend.
        TypeError: the padding mask is not bool, or ``rotary`` is not a Rotary.
        BackendError: the requested backend cannot serve the call.

    Example:
        >>> import torch
        >>> q, k, v = torch.randn(3, 2, 4, 6 * 5, 16)
        >>> rala_attention(q, k, v, rotary=Rotary((6, 5), 16)).shape
        torch.Size([2, 4, 30, 16])
    """
    options = LinearOptions(key_padding_mask, eps, feature_map, rotary, True, token_weights)
    backend = _choose('rala_attention', backend, q, k, v, options)
    if backend == 'reference':
        return rala_reference(q, k, v, options)
    return _torch_or_triton(backend, q, k, v, options)


def _choose(
    operator: str, backend: str, q: Tensor, k: Tensor, v: Tensor, options: LinearOptions
) -> str:
    check_qkv(q, k, v, options.key_padding_mask)
    check_rotary(options.rotary, q.shape[2], q.shape[3])
    get_feature_map(options.feature_map)

    def unsupported_reason() -> Optional[str]:
        from .triton_ops import unsupported_reason

        return unsupported_reason(q, v, options)

    return choose_backend(operator, backend, q, unsupported_reason)


def _torch_or_triton(
    backend: str, q: Tensor, k: Tensor, v: Tensor, options: LinearOptions
) -> Tensor:
    if backend == 'torch':
        return linear_torch(q, k, v, options)
    from .triton_ops import linear_triton

    return linear_triton(q, k, v, options)
