"""Custom operators of linear attention, RALA and MALA, for torch.compile and autograd."""

from typing import Optional, Tuple

import torch
from torch import Tensor

from ..common.kernel_fallback import current_fallback, gradients
from ..common.kv_state import KernelKVState, KeyLaunch, make_kv_state
from ..common.numerics import token_major
from ..common.packed import PackedShapes
from ..common.triton_helpers import FEATURES, padded, unsupported_tokens
from .options import LinearOptions
from .triton_kernels import KERNELS, MALA_KERNELS, RALA_KERNELS, backward, mean_query, query_output


def linear_triton(q: Tensor, k: Tensor, v: Tensor, options: LinearOptions) -> Tensor:
    """Compute linear attention, RALA or MALA."""
    rotary, packed, axes, width = options.rotary, options.packed, None, 0
    if rotary is not None:
        axes = rotary.axes(q.device)
        width = 0 if isinstance(rotary.hw_shape, PackedShapes) else rotary.hw_shape[1]
    images = None if packed is None else packed.table(q.shape[-1] // 4, q.device)
    return _forward(
        q,
        k,
        v,
        options.key_padding_mask,
        images,
        axes,
        0 if packed is None else max(packed.lengths),
        width,
        options.eps,
        options.feature_map,
        options.kind,
        options.kind != '' or options.mean_normaliser,
        options.num_keys is not None,
    )[0]


def unsupported_reason(q: Tensor, v: Tensor, options: LinearOptions) -> Optional[str]:
    """Return why the kernels cannot serve the call, or None if they can."""
    if options.token_weights is not None:
        return 'token_weights have no kernel'
    if options.feature_map not in FEATURES:
        return f'feature_map {options.feature_map!r} has no kernel, these have: {tuple(FEATURES)}'
    rotary = options.rotary
    if rotary is not None and (options.packed or rotary).num_extra_tokens:
        return 'extra tokens without rotary position have no kernel'
    if options.rotary is not None and options.rotary.num_heads > 1:
        return 'rotary position over all channels, before the heads, has no kernel'
    names = {'': KERNELS, 'rala': RALA_KERNELS, 'mala': MALA_KERNELS}[options.kind]
    return unsupported_tokens(q, v, names)


def _launches(
    q, k, mask, images, axes, longest, width, feature_map, kind, cross
) -> Tuple[KeyLaunch, KeyLaunch]:
    """Return the launchers of the queries and of the keys, one for both in self-attention."""
    options = FEATURES[feature_map], kind, axes, width, images, longest
    keys = KeyLaunch(k, mask, *options)
    if not cross:
        return keys, keys
    queries = KeyLaunch(q, None, *options)
    queries.root = keys.root  # the factor of gradients of sums
    return queries, keys


@torch.library.custom_op('mmlinattn::linear_attention', mutates_args=())
def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Optional[Tensor],
    images: Optional[Tensor],
    axes: Optional[Tensor],
    longest: int,
    width: int,
    eps: float,
    feature_map: str,
    kind: str,
    mean_normaliser: bool,
    cross: bool = False,
) -> Tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    with torch.cuda.device_of(q):
        options = images, axes, longest, width, feature_map, kind, cross
        queries, keys = _launches(q, k, mask, *options)
        mean = mean_query(q, queries) if queries.scored else None
        state = make_kv_state(k, v, mean, keys)
        return (query_output(q, state, eps, mean_normaliser, queries), *state)


@_forward.register_fake
def _(q, k, v, mask, images, axes, longest, width, eps, feature_map, kind, *_):
    batch, heads, _, dim = q.shape
    batch = batch if images is None else images.shape[0]
    size = padded(dim)
    rows = size + (2 if kind == 'mala' else 1)
    sums = q.new_empty((batch, heads, rows, size), dtype=torch.float32)
    total = sums.new_empty((batch, heads))
    mean, count = ((batch, heads, size), (batch, heads)) if kind == 'rala' else (0, 0)
    return token_major(q), sums, total, sums.new_empty(mean), sums.new_empty(count)


@torch.library.custom_op('mmlinattn::linear_attention_backward', mutates_args=())
def _backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Optional[Tensor],
    images: Optional[Tensor],
    axes: Optional[Tensor],
    sums: Tensor,
    total: Tensor,
    mean: Tensor,
    count: Tensor,
    longest: int,
    width: int,
    eps: float,
    feature_map: str,
    kind: str,
    mean_normaliser: bool,
    cross: bool = False,
) -> Tuple[Tensor, Tensor, Tensor]:
    options = images, axes, longest, width, feature_map, kind, cross
    queries, keys = _launches(q, k, mask, *options)
    with torch.cuda.device_of(q):
        state = KernelKVState(sums, total, mean, count)
        return backward(grad, q, k, v, state, eps, mean_normaliser, queries, keys)


@_backward.register_fake
def _(grad, q, k, v, *_):
    return token_major(q), token_major(k), token_major(v)


def _setup_context(ctx, inputs, output) -> None:
    ctx.set_materialize_grads(False)  # no zeros for what only the backward pass needs
    q, k, v, mask, images, axes, *ctx.options = inputs
    _, *state = output
    ctx.fallback = current_fallback()
    ctx.save_for_backward(q, k, v, mask, images, axes, *state)


def _autograd(ctx, grad, *_):
    grads = gradients(
        ctx.fallback,
        lambda: _backward(grad, *ctx.saved_tensors, *ctx.options),
        ctx.saved_tensors[:3],
        grad,
    )
    return (*grads, *(None,) * 10)


_forward.register_autograd(_autograd, setup_context=_setup_context)
