"""Rank-augmented linear attention (RALA)."""

from types import ModuleType
from typing import Optional

from torch import Tensor

from ..common.checks import check_qkv
from ..common.dispatch import Operator
from ..common.feature_maps import feature_map as get_feature_map
from ..common.rotary import Rotary, check_rotary
from .options import RalaOptions
from .torch_impl import rala_portable
from .reference import rala_reference


def _kernels() -> ModuleType:
    from . import triton_ops as fused

    return fused


_rala = Operator('rala_attention', rala_reference, rala_portable, _kernels)


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
    """Rank-augmented linear attention, "Breaking the Low-Rank Dilemma of Linear Attention"
    (Fan et al., CVPR 2025), equations 6 and 7 with the normaliser of the released code.

    With ``phi`` the feature map, ``a_j = N softmax_j(d^-0.5 mean_i(phi(q_i)) . phi(k_j))``::

        out_i = rot(phi(q_i))^T (1/N sum_j a_j rot(phi(k_j)) v_j^T)
                / (phi(q_i) . (1/N sum_j a_j phi(k_j)) + eps)

    Padded tokens are left out of every mean and sum and of N, so an image has the result that it
    has alone; an image that is all padding yields 0.

    Args:
        q, k: projected tokens before the feature map, (B, heads, N, d), any strides; float16,
            bfloat16, float32 or float64. Half types are accumulated in float32 (all but the
            reference form).
        v: values (B, heads, N, d_v) of the same type.
        rotary: position of the tokens, see :class:`mmlinattn.ops.Rotary`.
        key_padding_mask: (B, N) bool, True = padding.
        eps: added to the normaliser.
        feature_map: ``'elu+1'`` (the paper's), ``'relu'`` or ``'softmax'`` (table 9).
        token_weights: replaces ``a`` (table 10): broadcastable to (B, heads, N), mean 1 over the
            tokens; ones switch the augmentation of keys and values off.
        backend: ``'auto'``, ``'reference'``, ``'portable'`` or ``'fused'``.

    Returns:
        (B, heads, N, d_v) in the type of ``q``.

    Raises:
        ValueError: shapes, types or devices that do not fit, an unknown feature map or backend.
        TypeError: a padding mask that is not bool, another kind of ``rotary``.
        BackendError: a forced backend that cannot serve.

    Example:
        >>> import torch
        >>> q, k, v = torch.randn(3, 2, 4, 6 * 5, 16)
        >>> rala_attention(q, k, v, rotary=Rotary((6, 5), 16)).shape
        torch.Size([2, 4, 30, 16])
    """
    check_qkv(q, k, v, key_padding_mask)
    check_rotary(rotary, q.shape[2], q.shape[3])
    get_feature_map(feature_map)
    options = RalaOptions(rotary, key_padding_mask, eps, feature_map, token_weights)
    return _rala(backend, q, k, v, options)
