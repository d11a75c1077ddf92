"""Custom operators of linear attention and RALA, for torch.compile and autograd."""

from typing import Optional, Tuple

import torch
from torch import Tensor

from ..common.kv_state import KeyLaunch, KVState, make_kv_state
from ..common.numerics import token_major
from ..common.triton_helpers import FEATURES, padded, unsupported_tokens
from .options import LinearOptions
from .triton_kernels import KERNELS, RALA_KERNELS, backward, mean_query, query_output


def linear_triton(q: Tensor, k: Tensor, v: Tensor, options: LinearOptions) -> Tensor:
    """Compute :func:`mmlinattn.ops.linear_attention` or :func:`mmlinattn.ops.rala_attention`."""
    rotary, axes, width = options.rotary, None, 0
    if rotary is not None:
        axes, width = rotary.axes(q.device), rotary.hw_shape[1]
    return _forward(
        q,
        k,
        v,
        options.key_padding_mask,
        axes,
        width,
        options.eps,
        options.feature_map,
        options.scored,
        options.scored or options.mean_normaliser,
    )[0]


def unsupported_reason(q: Tensor, v: Tensor, options: LinearOptions) -> Optional[str]:
    """Return why the kernels cannot serve the call, or None if they can."""
    if options.token_weights is not None:
        return 'token_weights have no kernel'
    if options.feature_map not in FEATURES:
        return f'feature_map {options.feature_map!r} has no kernel, these have: {tuple(FEATURES)}'
    if options.rotary is not None and options.rotary.num_extra_tokens:
        return 'extra tokens without rotary position have no kernel'
    return unsupported_tokens(q, v, RALA_KERNELS if options.scored else KERNELS)


def _launch(q, mask, axes, width, feature_map, scored) -> KeyLaunch:
    return KeyLaunch(q, mask, FEATURES[feature_map], scored, axes, width)


@torch.library.custom_op('mmlinattn::linear_attention', mutates_args=())
def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Optional[Tensor],
    axes: Optional[Tensor],
    width: int,
    eps: float,
    feature_map: str,
    scored: bool,
    mean_normaliser: bool,
) -> Tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    with torch.cuda.device_of(q):
        launch = _launch(q, mask, axes, width, feature_map, scored)
        mean = mean_query(q, launch) if scored else None
        state = make_kv_state(k, v, mean, launch)
        return (query_output(q, state, eps, mean_normaliser, launch), *state)


@_forward.register_fake
def _(q, k, v, mask, axes, width, eps, feature_map, scored, mean_normaliser):
    batch, heads, _, dim = q.shape
    size = padded(dim)
    sums = q.new_empty((batch, heads, size + 1, size), dtype=torch.float32)
    total = sums.new_empty((batch, heads))
    mean, count = ((batch, heads, size), (batch, heads)) if scored else (0, 0)
    return token_major(q), sums, total, sums.new_empty(mean), sums.new_empty(count)


@torch.library.custom_op('mmlinattn::linear_attention_backward', mutates_args=())
def _backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Optional[Tensor],
    axes: Optional[Tensor],
    sums: Tensor,
    total: Tensor,
    mean: Tensor,
    count: Tensor,
    width: int,
    eps: float,
    feature_map: str,
    scored: bool,
    mean_normaliser: bool,
) -> Tuple[Tensor, Tensor, Tensor]:
    launch = _launch(q, mask, axes, width, feature_map, scored)
    with torch.cuda.device_of(q):
        state = KVState(sums, total, mean, count)
        return backward(grad, q, k, v, state, eps, mean_normaliser, launch)


@_backward.register_fake
def _(grad, q, k, v, *_):
    return token_major(q), token_major(k), token_major(v)


def _setup_context(ctx, inputs, output) -> None:
    ctx.set_materialize_grads(False)  # no zeros for what only the backward pass needs
    q, k, v, mask, axes, *ctx.options = inputs
    _, *state = output
    ctx.save_for_backward(q, k, v, mask, axes, *state)


def _autograd(ctx, grad, *_):
    grads = _backward(grad, *ctx.saved_tensors, *ctx.options)
    return (*grads, *(None,) * 7)


_forward.register_autograd(_autograd, setup_context=_setup_context)
