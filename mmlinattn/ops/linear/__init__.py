"""Linear attention."""

from types import ModuleType
from typing import Optional

from torch import Tensor

from ..common.checks import check_qkv
from ..common.dispatch import Operator
from ..common.feature_maps import feature_map as get_feature_map
from ..common.rotary import Rotary, check_rotary
from .options import LinearOptions
from .torch_impl import linear_portable
from .reference import linear_reference
from .unnormalised import unnormalised_attention

__all__ = ['linear_attention', 'unnormalised_attention']


def _kernels() -> ModuleType:
    from . import triton_ops as fused

    return fused


_linear = Operator('linear_attention', linear_reference, linear_portable, _kernels)


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    key_padding_mask: Optional[Tensor] = None,
    eps: float = 1e-6,
    feature_map: str = 'identity',
    rotary: Optional[Rotary] = None,
    backend: str = 'auto',
) -> Tensor:
    """Linear attention, "Transformers are RNNs" (Katharopoulos et al., ICML 2020), with ``phi`` the
    feature map::

        out_i = phi(q_i)^T (sum_j phi(k_j) v_j^T) / (phi(q_i) . sum_j phi(k_j) + eps)

    With ``rotary`` the features of the numerator are turned by the position of their token, as in
    RoFormer (Su et al., 2021) and RALA; those of the normaliser are not, and stay positive.

    Padded keys are left out of both sums; a query whose keys are all padded yields 0. Features
    should not be negative: of signed ones the normaliser can come close to 0.

    Args:
        q, k: queries and keys, (B, heads, N, m), any strides; float16, bfloat16, float32 or
            float64. Half types are accumulated in float32 (all but the reference form).
        v: values (B, heads, N, d_v) of the same type.
        key_padding_mask: (B, N) bool, True = padding.
        eps: added to the normaliser.
        feature_map: ``'elu+1'``, ``'relu'``, ``'softmax'`` (over channels), or ``'identity'`` for
            queries and keys that are features already.
        rotary: position of the tokens, see :class:`mmlinattn.ops.Rotary`, or None.
        backend: ``'auto'``, ``'reference'``, ``'portable'`` or ``'fused'``.

    Returns:
        (B, heads, N, d_v) in the type of ``v``.

    Raises:
        ValueError: shapes, types or devices that do not fit, an unknown feature map or backend.
        TypeError: a padding mask that is not bool, another kind of ``rotary``.
        BackendError: a forced backend that cannot serve.

    Example:
        >>> import torch
        >>> q, k, v = torch.randn(3, 2, 4, 30, 16)
        >>> linear_attention(q, k, v, feature_map='elu+1').shape
        torch.Size([2, 4, 30, 16])
    """
    check_qkv(q, k, v, key_padding_mask)
    check_rotary(rotary, q.shape[2], q.shape[3])
    get_feature_map(feature_map)
    return _linear(backend, q, k, v, LinearOptions(key_padding_mask, eps, feature_map, rotary))
