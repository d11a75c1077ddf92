"""Linear attention and RALA in chunks of tokens: the portable form of both.

With weights w_j, ``S = sum_j w_j rot(phi(k_j)) v_j^T`` and ``z = sum_j w_j phi(k_j)``, the output
is ``rot(phi(q_i)) S / (phi(q_i) . z + eps)``. What is computed for a token (features, weights,
rotated features, gradients of all these) exists for one chunk at a time and again in the backward
pass, so that nothing of size N is kept but the inputs. Chunks stay in the cache of a CPU.
"""

from dataclasses import replace
from typing import Any, List, NamedTuple, Optional, Tuple, Union

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..common.feature_maps import FEATURE_GRADIENTS, FEATURE_MAPS
from ..common.numerics import (
    accumulation_dtype,
    needs_gradient,
    no_autocast,
    one_graph,
    token_chunks,
    token_major,
)
from ..common.online_softmax import OnlineSoftmax
from ..common.rotary import turn
from .options import LinearOptions


def linear_portable(q: Tensor, k: Tensor, v: Tensor, options: LinearOptions) -> Tensor:
    """See :func:`mmlinattn.ops.linear_attention`."""
    # Autocast would push the sums and the normaliser back into half precision.
    with no_autocast(q):
        if one_graph() or not needs_gradient(q, k, v, options.weights):
            return _attend(q, k, v, options)[0]
        return _Attention.apply(q, k, v, options.weights, options)


class Sums(NamedTuple):
    """What the queries read.

    Attributes:
        state: S, (B, heads, m, d_v).
        total: z, (B, heads, 1, m).
        mean: mean of phi(q), (B, heads, 1, m), or None without scores.
        log_mass: log of the sum of the weights before they are normalised, (B, heads, 1, 1), or
            None.
    """

    state: Tensor
    total: Tensor
    mean: Tensor = None  # type: ignore[assignment]
    log_mass: Tensor = None  # type: ignore[assignment]


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx, q: Tensor, k: Tensor, v: Tensor, weights: Optional[Tensor], options: LinearOptions
    ) -> Tensor:
        out, sums = _attend(q, k, v, options)
        ctx.save_for_backward(q, k, v, options.key_padding_mask, weights, *sums)
        ctx.options = replace(options, key_padding_mask=None, weights=None)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> Tuple[Optional[Tensor], ...]:
        q, k, v, mask, weights, *sums = ctx.saved_tensors
        options = replace(ctx.options, key_padding_mask=mask, weights=weights)
        sums = Sums(*sums)
        with no_autocast(q):
            dq, d_sums = _query_gradients(grad, q, sums, options)
            dk, dv, d_weights, d_mean = _key_gradients(k, v, sums, d_sums, options)
            if d_mean is not None:
                _add_mean_gradient(dq, q, d_mean, options)
        return dq, dk, dv, d_weights, None


def _attend(q: Tensor, k: Tensor, v: Tensor, options: LinearOptions) -> Tuple[Tensor, Sums]:
    """The result, and what the queries read."""
    dtype = v.dtype
    chunks = token_chunks(q)
    if len(chunks) == 1:  # the mean query and the output then share their features
        work, phi = accumulation_dtype(dtype), FEATURE_MAPS[options.feature_map]
        q, k = phi(q.to(work)), phi(k.to(work))
        options = options.of_features()
    sums = _sum_up(q, k, v, options, chunks)
    return _read_out(q, sums, options, chunks, dtype), sums


def _sum_up(q: Tensor, k: Tensor, v: Tensor, options: LinearOptions, chunks: List[slice]) -> Sums:
    """Sums over all keys; the softmax over the tokens is taken online."""
    dtype = accumulation_dtype(v.dtype)
    phi = FEATURE_MAPS[options.feature_map]
    mean = _mean_query(q, options, chunks) if options.scored else None
    softmax = OnlineSoftmax()
    state: Any = 0  # a tensor after the first chunk
    total: Any = 0
    for chunk in chunks:
        features, values = phi(k[:, :, chunk].to(dtype)), v[:, :, chunk].to(dtype)
        if mean is None:
            weight, fade = _given(options, chunk, dtype), 1
        else:
            weight, fade = softmax.add(_scores(features, mean), _padding(options, chunk))
        if weight is None:
            chunk_total = features.sum(2, keepdim=True)
        else:
            chunk_total = weight @ features  # [B, H, 1, m]
            features = features * weight.transpose(-2, -1)
        turned = turn(features, _angles(options, chunk, features))
        state = state * fade + turned.transpose(-2, -1) @ values
        total = total * fade + chunk_total
    if mean is None:
        return Sums(state, total)
    share = softmax.share()
    return Sums(state * share, total * share, mean, softmax.log_mass())


def _mean_query(q: Tensor, options: LinearOptions, chunks: List[slice]) -> Tensor:
    """Mean of phi(q) over the real tokens, (B, heads, 1, m)."""
    dtype = accumulation_dtype(q.dtype)
    phi = FEATURE_MAPS[options.feature_map]
    if len(chunks) == 1 and options.key_padding_mask is None:
        # Not by a number of tokens, which ONNX's export by tracing would keep.
        return phi(q.to(dtype)).mean(2, keepdim=True)
    total: Any = 0
    for chunk in chunks:
        features = phi(q[:, :, chunk].to(dtype))
        keep = _real(options, chunk, dtype)
        total = total + (features.sum(2, keepdim=True) if keep is None else keep @ features)
    return total / _count(q, options)


def _read_out(
    q: Tensor, sums: Sums, options: LinearOptions, chunks: List[slice], out_dtype: torch.dtype
) -> Tensor:
    """(B, heads, N, d_v)."""
    phi = FEATURE_MAPS[options.feature_map]

    def read(chunk: slice) -> Tensor:
        features = phi(q[:, :, chunk].to(sums.state.dtype))
        norm = features @ sums.total.transpose(-2, -1) + options.eps  # [B, H, n, 1]
        out = turn(features, _angles(options, chunk, features)) @ sums.state
        # In place where nothing is kept of it: fresh memory costs as much as the product.
        return out / norm if one_graph() or torch.is_grad_enabled() else out.div_(norm)

    if len(chunks) == 1:
        return read(chunks[0]).to(out_dtype)
    out = token_major(q, sums.state.shape[-1], out_dtype)
    for chunk in chunks:
        out[:, :, chunk] = read(chunk)
    return out


def _query_gradients(
    grad: Tensor, q: Tensor, sums: Sums, options: LinearOptions
) -> Tuple[Tensor, Sums]:
    """Gradient of the queries, without that through their mean, and of the sums."""
    phi, gradient = FEATURE_MAPS[options.feature_map], FEATURE_GRADIENTS[options.feature_map]
    dtype = sums.state.dtype
    dq = torch.empty_like(q)
    d_state, d_total = torch.zeros_like(sums.state), torch.zeros_like(sums.total)
    for chunk in token_chunks(q):
        features = phi(q[:, :, chunk].to(dtype))
        norm = features @ sums.total.transpose(-2, -1) + options.eps
        scaled = grad[:, :, chunk].to(dtype) / norm
        angles = _angles(options, chunk, features)
        turned = turn(features, angles)
        d_turned = scaled @ sums.state.transpose(-2, -1)
        d_norm = -(turned * d_turned).sum(-1, keepdim=True) / norm
        d_state += turned.transpose(-2, -1) @ scaled
        d_total += d_norm.transpose(-2, -1) @ features
        d_features = turn(d_turned, angles, back=True) + d_norm * sums.total
        dq[:, :, chunk] = gradient(features, d_features)
    return dq, Sums(d_state, d_total)


def _key_gradients(
    k: Tensor, v: Tensor, sums: Sums, d_sums: Sums, options: LinearOptions
) -> Tuple[Tensor, Tensor, Optional[Tensor], Optional[Tensor]]:
    """Gradients of keys, values, given weights and mean query."""
    phi, gradient = FEATURE_MAPS[options.feature_map], FEATURE_GRADIENTS[options.feature_map]
    dtype, scale = sums.state.dtype, k.shape[-1] ** -0.5
    dk, dv = torch.empty_like(k), torch.empty_like(v)
    d_weights = None if options.weights is None else torch.empty_like(options.weights)
    d_mean = delta = None
    if options.scored:
        d_mean = torch.zeros_like(sums.mean)
        # What the softmax subtracts, sum_j w_j dw_j, in closed form.
        delta = (d_sums.state * sums.state).sum((-2, -1), keepdim=True)
        delta = delta + (d_sums.total * sums.total).sum(-1, keepdim=True)
    for chunk in token_chunks(k):
        features, values = phi(k[:, :, chunk].to(dtype)), v[:, :, chunk].to(dtype)
        weight = _given(options, chunk, dtype)
        if options.scored:
            weight = (_scores(features, sums.mean) - sums.log_mass).exp()
            padding = _padding(options, chunk)
            weight = weight if padding is None else weight.masked_fill(padding, 0)
        weight = None if weight is None else weight.transpose(-2, -1)  # [B, H, n, 1]
        weighted = features if weight is None else features * weight
        angles = _angles(options, chunk, features)
        dv[:, :, chunk] = turn(weighted, angles) @ d_sums.state
        d_turned = values @ d_sums.state.transpose(-2, -1)
        d_features = turn(d_turned, angles, back=True) + d_sums.total
        if weight is not None:
            d_weight = (d_features * features).sum(-1, keepdim=True)
            d_features = d_features * weight
            if d_weights is not None:
                d_weights[..., chunk] = d_weight.squeeze(-1)
            if delta is not None:
                d_scores = (d_weight - delta) * weight
                d_features = d_features + d_scores * (scale * sums.mean)
                d_mean += scale * (d_scores.transpose(-2, -1) @ features)
        dk[:, :, chunk] = gradient(features, d_features)
    return dk, dv, d_weights, d_mean


def _add_mean_gradient(dq: Tensor, q: Tensor, d_mean: Tensor, options: LinearOptions) -> None:
    """Adds what reaches the queries through their mean."""
    phi, gradient = FEATURE_MAPS[options.feature_map], FEATURE_GRADIENTS[options.feature_map]
    d_mean, mask = d_mean / _count(q, options), options.key_padding_mask
    for chunk in token_chunks(q):
        part = gradient(phi(q[:, :, chunk].to(d_mean.dtype)), d_mean)
        if mask is not None:
            part = part.masked_fill(mask[:, None, chunk, None], 0)
        dq[:, :, chunk] += part


def _scores(features: Tensor, mean: Tensor) -> Tensor:
    """Similarity of each key with the mean query, (B, heads, 1, n)."""
    return mean @ features.transpose(-2, -1) * features.shape[-1] ** -0.5


def _padding(options: LinearOptions, chunk: slice) -> Optional[Tensor]:
    """(B, 1, 1, n)."""
    mask = options.key_padding_mask
    return None if mask is None else mask[:, None, None, chunk]


def _real(options: LinearOptions, chunk: slice, dtype: torch.dtype) -> Optional[Tensor]:
    padding = _padding(options, chunk)
    return None if padding is None else (~padding).to(dtype)


def _given(options: LinearOptions, chunk: slice, dtype: torch.dtype) -> Optional[Tensor]:
    """Weights of the keys that do not depend on them, (B, heads or 1, 1, n); None: all 1."""
    weights = options.weights
    return _real(options, chunk, dtype) if weights is None else weights[..., None, chunk]


def _count(q: Tensor, options: LinearOptions) -> Union[int, Tensor]:
    """Real tokens of each image, at least 1: a number or (B, 1, 1, 1)."""
    mask = options.key_padding_mask
    return q.shape[2] if mask is None else (~mask).sum(-1).clamp(min=1)[:, None, None, None]


def _angles(options: LinearOptions, chunk: slice, like: Tensor) -> Optional[Tensor]:
    """(n, m / 2, 2) in the type of ``like``."""
    rotary = options.rotary
    return None if rotary is None else rotary.angles(like.dtype, like.device)[chunk]
