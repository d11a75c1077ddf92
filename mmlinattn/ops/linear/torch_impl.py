"""Linear attention, RALA and MALA in torch, chunk by chunk.

With weights w_j, ``S = sum_j w_j rot(phi(k_j)) v_j^T`` and ``z = sum_j w_j phi(k_j)``, the output
is ``rot(phi(q_i)) S / (phi(q_i) . z + eps)``. MALA has S, z and the values as means over the keys
and the output ``rot(phi(q_i)) S gain_i - z_i mean(v)``, see :func:`_gain`. Features,
weights, rotated features and their gradients exist for one chunk of tokens at a time. The backward
pass recomputes them, so that only the inputs are stored. Chunks fit the cache of a CPU.
"""

from typing import Any, List, NamedTuple, Optional, Tuple, Union

import torch
from torch import Tensor

from ..common.checks import check_qkv
from ..common.feature_maps import FEATURE_GRADIENTS, FEATURE_MAPS
from ..common.first_derivative import first_derivative_only
from ..common.numerics import (
    accumulation_dtype,
    chunk_of,
    is_tracing,
    masked_softmax,
    needs_gradient,
    no_autocast,
    put_chunk,
    token_chunks,
    token_major,
    zero_padding,
)
from ..common.online_softmax import OnlineSoftmax
from ..common.rotary import turn
from .options import LinearOptions


def linear_torch(q: Tensor, k: Tensor, v: Tensor, options: LinearOptions) -> Tensor:
    """Compute linear attention, RALA or MALA.

    O(N d^2) time, and O(N d) memory in training.
    """
    weights = options.token_weights
    if weights is not None:
        weights = _normalized_weights(weights, options.key_padding_mask, k)
        options = options._replace(token_weights=weights)
    # Autocast would compute the sums and the normaliser in half precision.
    with no_autocast(q):
        if is_tracing() or not needs_gradient(q, k, v, weights):
            return _attend(q, k, v, options)[0]
        return _Attention.apply(q, k, v, weights, options)


def unnormalised_attention(
    q: Tensor, k: Tensor, v: Tensor, *, key_padding_mask: Optional[Tensor] = None
) -> Tensor:
    """Compute ``out_i = q_i^T (sum_j k_j v_j^T)``, for features of any sign; O(N m d_v).

    Two matrix products; half types are summed in float32. Padded keys are excluded from the sum.

    Args:
        q, k: features (B, heads, N, m), any strides.
        v: values (B, heads, N, d_v), same dtype.
        key_padding_mask: (B, N) bool, True = padding.

    Returns:
        (B, heads, N, d_v) in at least float32: a sum over many tokens can overflow float16.

    Raises:
        ValueError: shapes, dtypes or devices do not match.
        TypeError: the padding mask is not bool.

    Example:
        >>> import torch
        >>> q, k, v = torch.randn(3, 2, 4, 30, 16)
        >>> unnormalised_attention(q, k, v).shape
        torch.Size([2, 4, 30, 16])
    """
    check_qkv(q, k, v, key_padding_mask)
    dtype = accumulation_dtype(q.dtype)
    with no_autocast(q):
        k = zero_padding(k.to(dtype), key_padding_mask)
        return q.to(dtype) @ (k.transpose(-2, -1) @ v.to(dtype))


def _normalized_weights(weights: Tensor, mask: Optional[Tensor], k: Tensor) -> Tensor:
    """Return weights of mean 1 as weights of sum 1, 0 for padding, (B, heads, N)."""
    weights = weights.to(accumulation_dtype(k.dtype)).expand(k.shape[:3])
    # Dividing the weights by N replaces the division of both sums by N.
    if mask is None:
        return weights / k.shape[2]
    count = (~mask).sum(-1)[:, None, None].clamp(min=1)
    return weights.masked_fill(mask[:, None], 0) / count


class KVState(NamedTuple):
    """Sums over the keys, which the queries multiply.

    Attributes:
        state: S, (B, heads, m, d_v).
        total: z, (B, heads, 1, m).
        mean: mean of phi(q), (B, heads, 1, m), or None without scores.
        log_mass: log of the sum of the unnormalised weights, (B, heads, 1, 1); None without scores
            or if a single chunk has all keys.
        values: mean of v, (B, heads, 1, d_v), for MALA, or None.
    """

    state: Tensor
    total: Tensor
    mean: Tensor = None  # type: ignore[assignment]  # None unless rank_augmented
    log_mass: Tensor = None  # type: ignore[assignment]  # None unless scored, in chunks
    values: Tensor = None  # type: ignore[assignment]  # None unless magnitude_aware


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx, q: Tensor, k: Tensor, v: Tensor, weights: Optional[Tensor], options: LinearOptions
    ) -> Tensor:
        out, sums = _attend(q, k, v, options)
        ctx.save_for_backward(q, k, v, options.key_padding_mask, weights, *sums)
        ctx.options = options._replace(key_padding_mask=None, token_weights=None)
        return out

    @staticmethod
    @first_derivative_only
    def backward(ctx, grad: Tensor) -> Tuple[Optional[Tensor], ...]:
        q, k, v, mask, weights, *sums = ctx.saved_tensors
        options = ctx.options._replace(key_padding_mask=mask, token_weights=weights)
        sums = KVState(*sums)
        with no_autocast(q):
            dq, d_sums = _query_gradients(grad, q, sums, options)
            dk, dv, d_weights, d_mean = _key_gradients(k, v, sums, d_sums, options)
            if d_mean is not None:
                _add_mean_gradient(dq, q, d_mean, options)
        return dq, dk, dv, d_weights, None


def _attend(q: Tensor, k: Tensor, v: Tensor, options: LinearOptions) -> Tuple[Tensor, KVState]:
    """Return the output and the state that the queries multiply."""
    dtype = v.dtype
    chunks = token_chunks(q)
    key_chunks = chunks if options.num_keys is None else token_chunks(k)
    if len(chunks) == len(key_chunks) == 1:
        # Compute the features once for the mean query and the output.
        work, phi = accumulation_dtype(dtype), FEATURE_MAPS[options.feature_map]
        q, k = (phi(chunk_of(x, chunks[0], work)) for x in (q, k))
        options = options._replace(feature_map='identity')
    sums = _kv_state(q, k, v, options, key_chunks)
    return _output(q, sums, options, chunks, dtype), sums


def _kv_state(
    q: Tensor, k: Tensor, v: Tensor, options: LinearOptions, chunks: List[slice]
) -> KVState:
    """Return the sums over all keys; the softmax over the tokens is computed online."""
    dtype = accumulation_dtype(v.dtype)
    phi = FEATURE_MAPS[options.feature_map]
    mean = _mean_query(q, options) if options.scored else None
    softmax = OnlineSoftmax() if len(chunks) > 1 else None
    state: Any = None  # a tensor after the first chunk
    total: Any = None
    sum_values: Any = None
    for chunk in chunks:
        features, values = phi(chunk_of(k, chunk, dtype)), chunk_of(v, chunk, dtype)
        if mean is None:
            weight, fade = _given(options, chunk, dtype), 1
        else:
            scores, padding = _scores(features, mean), _padding(options.key_padding_mask, chunk)
            if softmax is None:  # a third of the operations of the online softmax
                weight, fade = masked_softmax(scores, padding), 1
            else:
                weight, fade = softmax.add(scores, padding)
        if weight is None:
            chunk_total = features.sum(2, keepdim=True)
        else:
            chunk_total = weight @ features  # [B, H, 1, m]
            features = features * weight.transpose(-2, -1)
        if options.magnitude_aware:
            part = values.sum(2, keepdim=True) if weight is None else weight @ values
            sum_values = _faded_sum(sum_values, 1, part)
        turned = turn(features, _angles(options, chunk, features))
        state = _faded_sum(state, fade, turned.transpose(-2, -1) @ values)
        total = _faded_sum(total, fade, chunk_total)
    if options.magnitude_aware:
        count = _count(k, options.key_padding_mask)
        return KVState(state / count, total / count, values=sum_values / count)
    if softmax is None or mean is None:
        return KVState(state, total, mean)  # type: ignore[arg-type]  # or None
    share = softmax.share()
    return KVState(state * share, total * share, mean, softmax.log_mass())


def _faded_sum(before: Optional[Tensor], fade: Union[int, Tensor], part: Tensor) -> Tensor:
    """Return ``fade * before + part``; ``before`` is None at the first chunk."""
    if before is None:
        return part
    return before + part if isinstance(fade, int) else torch.addcmul(part, before, fade)


def _mean_query(q: Tensor, options: LinearOptions) -> Tensor:
    """Return the mean of phi(q) over the real tokens, (B, heads, 1, m)."""
    dtype, mask, chunks = accumulation_dtype(q.dtype), options.query_mask(), token_chunks(q)
    phi = FEATURE_MAPS[options.feature_map]
    if len(chunks) == 1 and mask is None:
        # torch's mean: ONNX export by tracing would store a number of tokens as a constant.
        return phi(q.to(dtype)).mean(2, keepdim=True)
    total: Any = 0
    for chunk in chunks:
        features = phi(chunk_of(q, chunk, dtype))
        keep = _real(mask, chunk, dtype)
        total = total + (features.sum(2, keepdim=True) if keep is None else keep @ features)
    return total / _count(q, mask)


def _output(
    q: Tensor, sums: KVState, options: LinearOptions, chunks: List[slice], out_dtype: torch.dtype
) -> Tensor:
    """Return the normalised output, (B, heads, N, d_v)."""
    phi, eps = FEATURE_MAPS[options.feature_map], _eps(q, options, sums.state.dtype)

    def output(chunk: slice) -> Tensor:
        features = phi(chunk_of(q, chunk, sums.state.dtype))
        norm = _normaliser(features, sums.total)
        out = turn(features, _angles(options, chunk, features)) @ sums.state
        # In place without autograd: fresh memory costs as much as the product.
        in_place = not (is_tracing() or torch.is_grad_enabled())
        if options.magnitude_aware:
            gain, z = _gain(norm, q.shape[-1], options)
            if in_place:
                return out.mul_(gain).addcmul_(z, sums.values, value=-1)
            return out * gain - z * sums.values
        return out.div_(norm.add_(eps)) if in_place else out / (norm + eps)

    if len(chunks) == 1:
        return output(chunks[0]).to(out_dtype)
    out = token_major(q, sums.state.shape[-1], out_dtype)
    for chunk in chunks:
        out[:, :, chunk] = output(chunk)
    return out


def _normaliser(features: Tensor, total: Tensor) -> Tensor:
    """Return ``phi(q_i) . z``, (B, heads, n, 1)."""
    # A product of one row: with one column it takes 2 to 8 times as long on a CPU.
    return (total @ features.transpose(-2, -1)).transpose(-2, -1)


def _query_gradients(
    grad: Tensor, q: Tensor, sums: KVState, options: LinearOptions
) -> Tuple[Tensor, KVState]:
    """Return gradients of the queries, except through their mean, and of the state."""
    phi, gradient = FEATURE_MAPS[options.feature_map], FEATURE_GRADIENTS[options.feature_map]
    dtype = sums.state.dtype
    eps = _eps(q, options, dtype)
    dq: Any = None
    scale = q.shape[-1] ** -0.5
    d_state, d_total = torch.zeros_like(sums.state), torch.zeros_like(sums.total)
    d_values = torch.zeros_like(sums.values) if options.magnitude_aware else None
    for chunk in token_chunks(q):
        features = phi(chunk_of(q, chunk, dtype))
        norm, scaled = _normaliser(features, sums.total), chunk_of(grad, chunk, dtype)
        angles = _angles(options, chunk, features)
        turned = turn(features, angles)
        if d_values is None:
            norm = norm + eps
            scaled = scaled / norm
            d_turned = scaled @ sums.state.transpose(-2, -1)
            d_norm = -(turned * d_turned).sum(-1, keepdim=True) / norm
        else:
            gain, z = _gain(norm, q.shape[-1], options)
            d_values -= z.transpose(-2, -1) @ scaled
            d_turned = scaled @ sums.state.transpose(-2, -1)
            d_norm = (turned * d_turned).sum(-1, keepdim=True) * (scale / (z + eps)).square()
            d_norm = -d_norm - scale * (scaled * sums.values).sum(-1, keepdim=True)
            scaled, d_turned = scaled * gain, d_turned * gain
        d_state += turned.transpose(-2, -1) @ scaled
        d_total += d_norm.transpose(-2, -1) @ features
        d_features = turn(d_turned, angles, back=True) + d_norm * sums.total
        dq = put_chunk(dq, chunk, gradient(features, d_features), q)
    return dq, KVState(d_state, d_total, values=d_values)  # type: ignore[arg-type]  # or None


def _key_gradients(
    k: Tensor, v: Tensor, sums: KVState, d_sums: KVState, options: LinearOptions
) -> Tuple[Tensor, Tensor, Optional[Tensor], Optional[Tensor]]:
    """Return gradients of keys, values, given weights and mean query."""
    phi, gradient = FEATURE_MAPS[options.feature_map], FEATURE_GRADIENTS[options.feature_map]
    dtype, scale, mask = sums.state.dtype, k.shape[-1] ** -0.5, options.key_padding_mask
    dk: Any = None
    dv: Any = None
    d_weights = None if options.token_weights is None else torch.empty_like(options.token_weights)
    d_mean = delta = d_values = None
    if options.magnitude_aware:
        count = _count(k, mask)
        d_state, d_total, d_values = (
            x / count for x in (d_sums.state, d_sums.total, d_sums.values)
        )
        d_sums = KVState(d_state, d_total)
    if options.scored:
        d_mean = torch.zeros_like(sums.mean)
        # sum_j w_j dw_j of the softmax gradient, in closed form.
        delta = (d_sums.state * sums.state).sum((-2, -1), keepdim=True)
        delta = delta + (d_sums.total * sums.total).sum(-1, keepdim=True)
    # Weights of one softmax need all keys: a dispatch mode of the forward pass alone makes one
    # chunk there and several here.
    single = options.scored and sums.log_mass is None
    for chunk in [slice(None)] if single else token_chunks(k):
        features, values = phi(chunk_of(k, chunk, dtype)), chunk_of(v, chunk, dtype)
        weight = _given(options, chunk, dtype)
        if options.scored:
            scores, padding = _scores(features, sums.mean), _padding(mask, chunk)
            if single:
                weight = masked_softmax(scores, padding)
            else:
                weight = (scores - sums.log_mass).exp()
                weight = weight if padding is None else weight.masked_fill(padding, 0)
        weight = None if weight is None else weight.transpose(-2, -1)  # [B, H, n, 1]
        weighted = features if weight is None else features * weight
        angles = _angles(options, chunk, features)
        d_value = turn(weighted, angles) @ d_sums.state
        if d_values is not None:
            d_value = d_value + (d_values if weight is None else weight * d_values)
        dv = put_chunk(dv, chunk, d_value, v)
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
        dk = put_chunk(dk, chunk, gradient(features, d_features), k)
    return dk, dv, d_weights, d_mean


def _gain(norm: Tensor, dim: int, options: LinearOptions) -> Tuple[Tensor, Tensor]:
    """Return the factor of MALA's product and ``z_i``, (B, heads, n, 1), of phi(q_i) . z."""
    scale = dim**-0.5
    z = scale * norm
    return scale * (1 + 1 / (z + options.eps)), z


def _add_mean_gradient(dq: Tensor, q: Tensor, d_mean: Tensor, options: LinearOptions) -> None:
    """Add the gradient of the queries through their mean."""
    phi, gradient = FEATURE_MAPS[options.feature_map], FEATURE_GRADIENTS[options.feature_map]
    mask = options.query_mask()
    d_mean = d_mean / _count(q, mask)
    for chunk in token_chunks(q):
        part = gradient(phi(chunk_of(q, chunk, d_mean.dtype)), d_mean)
        if mask is not None:
            part = part.masked_fill(mask[:, None, chunk, None], 0)
        dq[:, :, chunk] += part


def _scores(features: Tensor, mean: Tensor) -> Tensor:
    """Return the similarity of each key with the mean query, (B, heads, 1, n)."""
    return mean @ features.transpose(-2, -1) * features.shape[-1] ** -0.5


def _padding(mask: Optional[Tensor], chunk: slice) -> Optional[Tensor]:
    """Return the padding mask of a chunk, (B, 1, 1, n), or None."""
    return None if mask is None else mask[:, None, None, chunk]


def _real(mask: Optional[Tensor], chunk: slice, dtype: torch.dtype) -> Optional[Tensor]:
    padding = _padding(mask, chunk)
    return None if padding is None else (~padding).to(dtype)


def _given(options: LinearOptions, chunk: slice, dtype: torch.dtype) -> Optional[Tensor]:
    """Return weights that do not depend on the keys, (B, heads or 1, 1, n); None means all 1."""
    weights = options.token_weights
    mask = options.key_padding_mask
    return _real(mask, chunk, dtype) if weights is None else weights[..., None, chunk]


def _eps(q: Tensor, options: LinearOptions, dtype: torch.dtype) -> Union[float, Tensor]:
    """Return the eps to add to the product with the sums: a number or (B, 1, 1, 1)."""
    if not options.mean_normaliser:
        return options.eps
    count = options.num_keys
    if count is None or options.key_padding_mask is not None:
        count = _count(q, options.key_padding_mask)
    return options.eps * (count.to(dtype) if isinstance(count, Tensor) else count)


def _count(x: Tensor, mask: Optional[Tensor]) -> Union[int, Tensor]:
    """Return the number of real tokens, at least 1: an integer or (B, 1, 1, 1)."""
    return x.shape[2] if mask is None else (~mask).sum(-1).clamp(min=1)[:, None, None, None]


def _angles(options: LinearOptions, chunk: slice, like: Tensor) -> Optional[Tensor]:
    """Return the rotary angles of a chunk, (n, m / 2, 2) or by heads, in the dtype of ``like``."""
    rotary = options.rotary
    return None if rotary is None else rotary.angles(like.dtype, like.device)[..., chunk, :, :]
