"""The kernels of :mod:`.kernelised` as custom operators: torch.compile and autograd see them."""

from typing import Optional, Tuple

import torch
from torch import Tensor

from ..rotary import Rotary
from .common import FEATURES, padded, token_major
from .kernelised import KernelisedLaunch, State, backward, make_state, mean_query, read_out


def kernelised_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rotary: Optional[Rotary],
    key_padding_mask: Optional[Tensor],
    eps: float,
    feature_map: str,
    weighted: bool,
) -> Tensor:
    """Linear attention, or RALA where ``weighted``; (B, heads, N, d) in and out."""
    sin, cos = (None, None) if rotary is None else (t.float() for t in rotary)
    return _forward(q, k, v, key_padding_mask, sin, cos, eps, feature_map, weighted)[0]


def _launch(q, mask, sin, cos, feature_map, weighted) -> KernelisedLaunch:
    rotary = None if sin is None else (sin, cos)
    return KernelisedLaunch(q, mask, rotary, FEATURES[feature_map], weighted)


@torch.library.custom_op('mmlinattn::kernelised_attention', mutates_args=())
def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Optional[Tensor],
    sin: Optional[Tensor],
    cos: Optional[Tensor],
    eps: float,
    feature_map: str,
    weighted: bool,
) -> Tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    with torch.cuda.device_of(q):
        launch = _launch(q, mask, sin, cos, feature_map, weighted)
        mean = mean_query(q, launch) if weighted else None
        state = make_state(k, v, mean, eps, launch)
        return (read_out(q, state, launch), *state)


@_forward.register_fake
def _(q, k, v, mask, sin, cos, eps, feature_map, weighted):
    batch, heads, _, dim = q.shape
    size = padded(dim)
    new = q.new_empty
    s = new((batch, heads, size, size), dtype=torch.float32)
    z = new((batch, heads, size), dtype=torch.float32)
    scalar = new((batch, heads), dtype=torch.float32)
    mean = torch.empty_like(z) if weighted else new(0, dtype=torch.float32)
    return token_major(q), s, z, scalar, torch.empty_like(scalar), mean


@torch.library.custom_op('mmlinattn::kernelised_attention_backward', mutates_args=())
def _backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Optional[Tensor],
    sin: Optional[Tensor],
    cos: Optional[Tensor],
    s: Tensor,
    z: Tensor,
    eps: Tensor,
    lse: Tensor,
    mean: Tensor,
    feature_map: str,
    weighted: bool,
) -> Tuple[Tensor, Tensor, Tensor]:
    launch = _launch(q, mask, sin, cos, feature_map, weighted)
    with torch.cuda.device_of(q):
        return backward(grad, q, k, v, State(s, z, eps, lse, mean), launch)


@_backward.register_fake
def _(grad, q, k, v, *_):
    return token_major(q), token_major(k), token_major(v)


def _setup_context(ctx, inputs, output) -> None:
    q, k, v, mask, sin, cos, _, ctx.feature_map, ctx.weighted = inputs
    _, *state = output
    ctx.save_for_backward(q, k, v, mask, sin, cos, *state)


def _autograd(ctx, grad, *_):
    grads = _backward(grad, *ctx.saved_tensors, ctx.feature_map, ctx.weighted)
    return (*grads, None, None, None, None, None, None)


_forward.register_autograd(_autograd, setup_context=_setup_context)
