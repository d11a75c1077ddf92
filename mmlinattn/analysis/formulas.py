"""Multiply-accumulates of an operator, by the formulas of ``torch.utils.flop_counter`` and more.

``FlopCounterMode`` itself does not suffice: docs/design.md says why.
"""

import re
from typing import Any, Callable, Optional

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop, sdpa_flop

aten = torch.ops.aten


def products(func: OpOverload, args: tuple, kwargs: dict, out: Any) -> Optional[int]:
    """Return the multiply-accumulates of one call, None for operators without a formula.

    One multiplication with its addition counts as one; torch counts it as two operations.
    """
    formula = PRODUCTS.get(func.overloadpacket)
    return None if formula is None else formula(*args, **kwargs, out_val=out) // 2


def elementwise(func: OpOverload, args: tuple, out: Any) -> int:
    """Return the number that fvcore counts for a norm, resizing or pooling, 0 for the rest."""
    formula = ELEMENTWISE.get(func.overloadpacket)
    return 0 if formula is None else formula(args, out)


def may_have_products(func: OpOverload) -> bool:
    """Return True if an operator without a formula may contain matrix products."""
    return SUSPICIOUS.match(func._schema.name.removesuffix('_')) is not None


def _matrix_vector(matrix: int) -> Callable:
    return lambda *args, **kwargs: 2 * args[matrix].numel()


def _convolution_backward(
    grad: Tensor, x: Tensor, weight: Tensor, *args: Any, out_val: tuple
) -> int:
    """Count the backward pass of a convolution.

    torch counts the gradient of a depth-wise weight as that of a full one. ``args`` are bias sizes,
    stride, padding, dilation, transposed (4), output padding, groups and output mask (7).
    """
    positions = (x if args[4] else grad).shape[2:]
    return 2 * len(x) * positions.numel() * weight.numel() * sum(args[7][:2])


PRODUCTS = {
    # torch has formulas for these two from 2.15 on.
    aten._scaled_dot_product_flash_attention_for_cpu: sdpa_flop,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: sdpa_backward_flop,
    **flop_registry,
    aten.convolution_backward: _convolution_backward,
    aten.addmm_: flop_registry[aten.addmm],
    aten.baddbmm_: flop_registry[aten.baddbmm],
    aten.dot: _matrix_vector(0),
    aten.mv: _matrix_vector(0),
    aten.addmv: _matrix_vector(1),
    aten.addmv_: _matrix_vector(1),
}


def _per_input(amount: int) -> Callable:
    return lambda args, out: amount * args[0].numel()


def _batch_norm(args: tuple, out: Any) -> int:
    """Count the scale and, if the norm has weights, the shift, both with running statistics."""
    return args[0].numel() * (1 if args[1] is None else 2)


ELEMENTWISE = {
    aten.native_layer_norm: _per_input(5),
    aten.native_group_norm: _per_input(5),
    aten.native_batch_norm: _batch_norm,
    aten._native_batch_norm_legit_no_training: _batch_norm,
    aten.upsample_bilinear2d: lambda args, out: 4 * out.numel(),
    aten._adaptive_avg_pool2d: _per_input(1),
}
# Operators that contain matrix products, and operators of other libraries, which may.
SUSPICIOUS = re.compile(
    r'(?!aten::|prim::|profiler::)|aten::(linalg_(?!vector_norm)\w*|\w*'
    r'(mm|mv|dot|matmul|linear|einsum|conv\w*|attention\w*|transformer\w*|rnn\w*|cdist\w*|inverse)'
    r')$'
)
