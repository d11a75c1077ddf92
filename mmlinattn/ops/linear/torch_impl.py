"""Linear attention, RALA and MALA in torch, chunk by chunk.

With weights w_j, ``S = sum_j w_j rot(phi(k_j)) v_j^T`` and ``z = sum_j w_j phi(k_j)``, the output
is ``rot(phi(q_i)) S / (phi(q_i) . z + eps)``. MALA has means over the keys and the output
``rot(phi(q_i)) S gain_i - z_i mean(v)``. Features, weights and their gradients exist for one chunk
of tokens at a time, which fits the cache of a CPU; the backward pass recomputes them.

On an accelerator the factors of products with half inputs are half as well, see
:func:`..common.numerics.product`. The sums over N keys and their gradients are then divided by N,
or a power of two near it, which keeps float16 in range.
"""

from typing import Any, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from ..common.checks import check_qkv
from ..common.feature_maps import FEATURE_GRADIENTS, FEATURE_MAPS, FEATURE_VALUES
from ..common.first_derivative import first_derivative_only
from ..common.numerics import (
    Half,
    Mask,
    accumulation_dtype,
    chunk_of,
    factor_dtype,
    is_tracing,
    masked_softmax,
    needs_gradient,
    no_autocast,
    product,
    put_chunk,
    token_chunks,
    token_major,
    zero_padding,
)
from ..common.online_softmax import OnlineSoftmax
from ..common.rotary import turn
from .options import LinearOptions


def linear_torch(q: Tensor, k: Tensor, v: Tensor, options: LinearOptions) -> Tensor:
    """Compute linear attention, RALA or MALA in O(N d^2) time and O(N d) memory in training."""
    weights, tracing = options.token_weights, is_tracing()
    if weights is not None:
        weights = _normalized_weights(weights, options.key_padding_mask, k)
        # Not _replace, which torch 2.4 cannot compile.
        place = LinearOptions._fields.index('token_weights')
        values: Any = (*options[:place], weights, *options[place + 1 :])
        options = LinearOptions(*values)
    # Autocast would compute the sums and the normaliser in half precision.
    with no_autocast(q, tracing):
        if tracing or not needs_gradient(q, k, v, weights):
            return _attend(q, k, v, options, tracing)[0]
        return _Attention.apply(q, k, v, weights, options)


def unnormalised_attention(
    q: Tensor, k: Tensor, v: Tensor, *, key_padding_mask: Mask = None
) -> Tensor:
    """Compute ``out_i = q_i^T (sum_j k_j v_j^T)``, for features of any sign; O(N m d_v).

    Two matrix products; arguments and errors as :func:`mmlinattn.ops.linear_attention`. Padded
    keys are excluded from the sum.

    Returns:
        (B, heads, N, d_v) in at least float32: a sum over many tokens can overflow float16.

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


def _normalized_weights(weights: Tensor, mask: Mask, k: Tensor) -> Tensor:
    """Return weights of mean 1 as weights of sum 1, 0 for padding, (B, heads, N)."""
    weights = weights.to(accumulation_dtype(k.dtype)).expand(k.shape[:3])
    # Dividing the weights by N replaces the division of both sums by N.
    if mask is None:
        return weights / k.shape[2]
    return weights.masked_fill(mask[:, None], 0) / _count(k, mask).squeeze(-1)


class KVState(NamedTuple):
    """Sums over the keys, which the queries multiply, and other means."""

    state: Tensor  # S, [B, H, m, d_v]
    z: Tensor  # [B, H, 1, m]
    mean: Any = None  # of phi(q), [B, H, 1, m], if a softmax weights the keys
    log_mass: Any = None  # log of the sum of its weights, [B, H, 1, 1], if it was in chunks
    values: Any = None  # mean of v, [B, H, 1, d_v], for MALA


class _Call:
    """Constants that all chunks of a call share."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, options: LinearOptions, half: Half) -> None:
        self.options, self.mask, self.half = options, options.key_padding_mask, half
        self.dtype = accumulation_dtype(v.dtype)  # of sums and normalisers
        # Of sums over the keys.
        self.scale = 1.0 if self.half is None else 2.0 ** -k.shape[2].bit_length()
        self.chunks = self.key_chunks = token_chunks(q, None, False)
        if options.num_keys is not None:
            self.key_chunks = token_chunks(k, None, False)
        rotary = options.rotary
        self.angles = None if rotary is None else rotary.angles(self.dtype, q.device, False)
        self.phi = FEATURE_VALUES[options.feature_map]
        self.gradient = FEATURE_GRADIENTS[options.feature_map]

    def features(self, x: Tensor, chunk: slice) -> Tensor:
        """Return phi of a chunk of queries or keys, rounded once to the type of the factors."""
        return self.phi(chunk_of(x, chunk, self.half or self.dtype))

    def turn(self, x: Tensor, chunk: slice, back: bool = False) -> Tensor:
        """Rotate the features of a chunk by the positions of the tokens."""
        angles = self.angles
        if angles is None:
            return x
        if chunk.start is not None:
            angles = angles[..., chunk, :, :]
        return turn(x if self.half is None else x.to(self.dtype), angles, back, False)

    def padding(self, chunk: slice) -> Optional[Tensor]:
        """Return the padding mask of a chunk, (B, 1, 1, n), or None."""
        return None if self.mask is None else self.mask[:, None, None, chunk]

    def real(self, chunk: slice, mask: Mask) -> Optional[Tensor]:
        """Return 1 for tokens and 0 for padding, (B, 1, 1, n), or None without ``mask``."""
        return None if mask is None else (~mask[:, None, None, chunk]).to(self.dtype)

    def given_weight(self, chunk: slice) -> Optional[Tensor]:
        """Return weights that do not depend on the keys, (B, heads or 1, 1, n); None: all 1."""
        weights = self.options.token_weights
        if weights is None:
            return self.real(chunk, self.mask)
        return weights[..., None, chunk] / self.scale

    def sum(self, weight: Optional[Tensor], x: Tensor) -> Tensor:
        """Return the weighted sum of the tokens of a chunk, (B, heads, 1, c)."""
        if weight is None:
            return x.sum(2, keepdim=True, dtype=self.dtype)
        return product(weight, x, self.half)

    def eps(self, q: Tensor) -> Any:
        """Return the eps to add to the product with the sums, see :func:`_eps`."""
        eps, options = _eps(q, self.options, self.dtype), self.options
        # Weights of sum 1 and means are not scaled in the end.
        return eps if options.kind else eps * self.scale


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx, q: Tensor, k: Tensor, v: Tensor, weights: Optional[Tensor], options: LinearOptions
    ) -> Tensor:
        out, sums = _attend(q, k, v, options, False)
        mask = options.key_padding_mask
        ctx.save_for_backward(q, k, v, mask, weights, *sums)
        if mask is not None or weights is not None:
            options = options._replace(key_padding_mask=None, token_weights=None)
        ctx.options = options
        return out

    @staticmethod
    @first_derivative_only
    def backward(ctx, grad: Tensor) -> Tuple[Optional[Tensor], ...]:
        q, k, v, mask, weights, *sums = ctx.saved_tensors
        options = ctx.options
        if mask is not None or weights is not None:
            options = options._replace(key_padding_mask=mask, token_weights=weights)
        sums = KVState(*sums)
        with no_autocast(q, False):
            call = _Call(q, k, v, options, factor_dtype(v))
            dq, d_sums = _query_gradients(call, grad, q, sums)
            dk, dv, d_weights, d_mean = _key_gradients(call, k, v, sums, d_sums)
            if d_mean is not None:
                _add_mean_gradient(call, dq, q, d_mean)
        return dq, dk, dv, d_weights, None


def _attend(
    q: Tensor, k: Tensor, v: Tensor, options: LinearOptions, tracing: bool
) -> Tuple[Tensor, KVState]:
    """Return the output and the state that the queries multiply."""
    half = factor_dtype(v)
    whole = half is None and len(token_chunks(q, None, tracing)) == 1
    if whole and (options.num_keys is None or len(token_chunks(k, None, tracing)) == 1):
        return _attend_whole(q, k, v, options, tracing)
    call = _Call(q, k, v, options, half)
    sums = _kv_state(call, q, k, v)
    return _output(call, q, sums, v.dtype), sums


def _attend_whole(
    q: Tensor, k: Tensor, v: Tensor, options: LinearOptions, tracing: bool
) -> Tuple[Tensor, KVState]:
    """Compute it for all tokens at once, in few operations, which a tracer records."""
    out_dtype, dtype, mask = v.dtype, accumulation_dtype(v.dtype), options.key_padding_mask
    if dtype != out_dtype:
        q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
    phi = (FEATURE_MAPS if tracing else FEATURE_VALUES)[options.feature_map]
    q, k = phi(q), phi(k)
    mean = values = None
    weight = options.token_weights
    if weight is not None:
        weight = weight[..., None, :]
    elif options.kind == 'rala':
        padding = None if mask is None else mask[:, None, None]
        if mask is None or options.num_keys is not None:
            # torch's mean: ONNX export by tracing would store a number of tokens as a constant.
            mean = q.mean(2, keepdim=True)
        else:
            mean = (~mask[:, None, None]).to(dtype) @ q / _count(q, mask)
        weight = masked_softmax(mean @ k.transpose(-2, -1) * k.shape[-1] ** -0.5, padding)
    elif mask is not None:
        weight = (~mask[:, None, None]).to(dtype)
    angles = None
    if options.rotary is not None:
        angles = options.rotary.angles(dtype, q.device, tracing)
    if weight is None:
        z = k.sum(2, keepdim=True)  # [B, H, 1, m]
    else:
        z, k = weight @ k, k * weight[..., 0, :, None]
    state = (k if angles is None else turn(k, angles, False, tracing)).transpose(-2, -1) @ v
    del k  # its memory is still in the cache
    if options.kind == 'mala':
        count = _count(v, mask)
        values = (v.sum(2, keepdim=True) if weight is None else weight @ v) / count
        state, z = state / count, z / count
    # A product of one row: with one column it takes 2 to 8 times as long on a CPU.
    norm = (z @ q.transpose(-2, -1))[..., 0, :, None]
    q = q if angles is None else turn(q, angles, False, tracing)
    out = _normalise(q @ state, norm, values, _eps(q, options, dtype), q.shape[-1], tracing)
    out = out if dtype == out_dtype else out.to(out_dtype)
    return out, KVState(state, z, mean, None, values)


def _normalise(
    out: Tensor, norm: Tensor, values: Optional[Tensor], eps: Any, dim: int, tracing: bool
) -> Tensor:
    """Divide ``rot(phi(q_i)) S`` by the normaliser, or scale and shift it with MALA's values."""
    # In place without autograd: fresh memory costs as much as the product.
    if values is None:
        return out / (norm + eps) if tracing else out.div_(norm.add_(eps))
    gain, z_i = _gain(norm, dim, eps)
    if tracing:
        return out * gain - z_i * values
    return out.mul_(gain).addcmul_(z_i, values, value=-1)


def _kv_state(call: _Call, q: Tensor, k: Tensor, v: Tensor) -> KVState:
    """Return the sums over all keys; the softmax over the tokens is computed online."""
    half, means = call.half, call.options.kind == 'mala'
    mean = softmax = None
    if call.options.scored:
        mean, softmax = _mean_query(call, q), OnlineSoftmax()
    state: Any = None  # a tensor after the first chunk
    z: Any = None
    sum_values: Any = None
    for chunk in call.key_chunks:
        features, values = call.features(k, chunk), chunk_of(v, chunk, half or call.dtype)
        weight: Any = None
        fade = None
        if softmax is None:
            weight = call.given_weight(chunk)
        else:
            weight, fade = softmax.add(_scores(features, mean, half), call.padding(chunk))
        z = _faded_sum(z, fade, call.sum(weight, features))
        if weight is not None:
            features = features * weight.mT
        if means:
            sum_values = _faded_sum(sum_values, fade, call.sum(weight, values))
        state = _faded_sum(state, fade, product(call.turn(features, chunk).mT, values, half))
    if means:
        count = _count(k, call.mask)
        return KVState(state / count, z / count, values=sum_values / count)
    if softmax is not None:
        share = softmax.share()
        return KVState(state * share, z * share, mean, softmax.log_mass())
    if half is not None:
        state, z = state * call.scale, z * call.scale
    return KVState(state, z)


def _faded_sum(before: Optional[Tensor], fade: Optional[Tensor], part: Tensor) -> Tensor:
    """Return ``fade * before + part``; ``before`` is None at the first chunk, ``fade`` for 1."""
    if before is None:
        return part
    return before + part if fade is None else torch.addcmul(part, before, fade)


def _mean_query(call: _Call, q: Tensor) -> Tensor:
    """Return the mean of phi(q) over the real tokens, (B, heads, 1, m)."""
    mask = call.options.query_mask()
    total: Any = None
    for chunk in call.chunks:
        total = _faded_sum(total, None, call.sum(call.real(chunk, mask), call.features(q, chunk)))
    return total / _count(q, mask)


def _output(call: _Call, q: Tensor, sums: KVState, out_dtype: torch.dtype) -> Tensor:
    """Return the normalised output, (B, heads, N, d_v)."""
    eps, half = call.eps(q), call.half
    out = token_major(q, sums.state.shape[-1], out_dtype)
    for chunk in call.chunks:
        features = call.features(q, chunk)
        norm = _norm(features, sums.z, half)
        part = product(call.turn(features, chunk), sums.state, half)
        if sums.values is None:  # rounded to half in the same pass
            torch.div(part, norm.add_(eps), out=out[:, :, chunk])
        else:
            out[:, :, chunk] = _normalise(part, norm, sums.values, eps, q.shape[-1], False)
    return out


def _norm(features: Tensor, z: Tensor, half: Half) -> Tensor:
    """Return ``phi(q_i) . z``, (B, heads, n, 1)."""
    # A product of one row: with one column it takes 2 to 8 times as long on a CPU.
    return product(z, features.mT, half).mT


def _query_gradients(call: _Call, grad: Tensor, q: Tensor, sums: KVState) -> Tuple[Tensor, KVState]:
    """Return gradients of the queries, except through their mean, and of the state."""
    half, scale, means = call.half, q.shape[-1] ** -0.5, call.options.kind == 'mala'
    eps, state = call.eps(q), sums.state.mT
    # Without rotation the gradients of queries are small differences of what all values have in
    # common: rounded sums would cost most digits.
    of_sums = half if call.options.rotary is not None else None
    dq: Any = None
    d_state: Any = None
    d_z: Any = None
    d_values: Any = None
    for chunk in call.chunks:
        features, grads = call.features(q, chunk), chunk_of(grad, chunk, half or call.dtype)
        wide = features if of_sums else features.to(call.dtype)
        norm = _norm(wide, sums.z, of_sums)
        turned = call.turn(features, chunk)
        # Before the factors, which can leave float16.
        d_turned = product(grads if of_sums else grads.to(call.dtype), state, of_sums)
        if means:
            gain, z_i = _gain(norm, q.shape[-1], eps)
            d_values = _faded_sum(d_values, None, -product(z_i.mT, grads, half))
            d_norm = (turned * d_turned).sum(-1, keepdim=True) * (scale / (z_i + eps)).square()
            d_norm = -d_norm - scale * product(sums.values, grads.mT, half).mT
            turned, d_turned = turned * gain, d_turned.mul_(gain)
        else:
            norm = norm.add_(eps)
            turned, d_turned = turned / norm, d_turned.div_(norm)
            d_norm = -(turned * d_turned).sum(-1, keepdim=True)
        d_state = _faded_sum(d_state, None, product(turned.mT, grads, half))
        d_z = _faded_sum(d_z, None, product(d_norm.mT, features, half))
        d_features = call.turn(d_turned, chunk, back=True) + d_norm * sums.z
        dq = put_chunk(dq, chunk, call.gradient(features, d_features), q)
    return dq, KVState(d_state, d_z, values=d_values)


def _key_gradients(
    call: _Call, k: Tensor, v: Tensor, sums: KVState, d_sums: KVState
) -> Tuple[Tensor, Tensor, Optional[Tensor], Optional[Tensor]]:
    """Return gradients of keys, values, given weights and mean query."""
    half, scale, options = call.half, k.shape[-1] ** -0.5, call.options
    d_state, d_z, d_values = d_sums.state, d_sums.z, d_sums.values
    d_weights = None if options.token_weights is None else torch.empty_like(options.token_weights)
    if options.kind == 'mala':
        count = _count(k, call.mask)
        d_state, d_z, d_values = d_state / count, d_z / count, d_values / count
    elif half is not None:
        d_state, d_z = d_state * call.scale, d_z * call.scale
    d_mean = delta = None
    if options.scored:
        d_mean = torch.zeros_like(sums.mean)
        # sum_j w_j dw_j of the softmax gradient, in closed form.
        delta = (d_state * sums.state).sum((-2, -1), keepdim=True)
        delta = delta + (d_z * sums.z).sum(-1, keepdim=True)
    # Weights of one softmax need all keys: a dispatch mode of the forward pass alone makes one
    # chunk there and several here.
    single = options.scored and sums.log_mass is None
    dk: Any = None
    dv: Any = None
    for chunk in [slice(None)] if single else call.key_chunks:
        features, values = call.features(k, chunk), chunk_of(v, chunk, half or call.dtype)
        weight = None if options.scored else call.given_weight(chunk)
        if options.scored:
            scores, padding = _scores(features, sums.mean, half), call.padding(chunk)
            if single:
                weight = masked_softmax(scores, padding)
            else:
                weight = (scores - sums.log_mass).exp_()
                weight = weight if padding is None else weight.masked_fill(padding, 0)
                weight = weight if half is None else weight / call.scale
        d_value = product(call.turn(features, chunk), d_state, half)
        if d_values is not None:
            d_value += d_values
        d_features = call.turn(product(values, d_state.mT, half), chunk, back=True) + d_z
        if weight is not None:
            weight = weight.mT  # [B, H, n, 1]
            d_value *= weight
            if d_weights is not None or delta is not None:
                d_weight = (d_features * features).sum(-1, keepdim=True)
            d_features *= weight
            if d_weights is not None:
                d_weights[..., chunk] = d_weight.squeeze(-1) / call.scale
            if delta is not None:
                d_scores = (d_weight - delta) * weight
                d_features += d_scores * (scale * sums.mean)
                d_mean += scale * product(d_scores.mT, features, half)
        dv = put_chunk(dv, chunk, d_value, v)
        dk = put_chunk(dk, chunk, call.gradient(features, d_features), k)
    return dk, dv, d_weights, d_mean


def _gain(norm: Tensor, dim: int, eps: Any) -> Tuple[Tensor, Tensor]:
    """Return the factor of MALA's product and ``z_i``, (B, heads, n, 1), of phi(q_i) . z."""
    scale = dim**-0.5
    z_i = scale * norm
    return scale * (1 + (z_i + eps).reciprocal()), z_i


def _add_mean_gradient(call: _Call, dq: Tensor, q: Tensor, d_mean: Tensor) -> None:
    """Add the gradient of the queries through their mean."""
    mask = call.options.query_mask()
    d_mean = d_mean / _count(q, mask)
    for chunk in call.chunks:
        part = call.gradient(call.features(q, chunk), d_mean)
        if mask is not None:
            part = part.masked_fill(mask[:, None, chunk, None], 0)
        dq[:, :, chunk] += part


def _scores(features: Tensor, mean: Any, half: Half) -> Tensor:
    """Return the similarity of each key with the mean query, (B, heads, 1, n)."""
    return product(mean, features.mT, half) * features.shape[-1] ** -0.5


def _eps(q: Tensor, options: LinearOptions, dtype: torch.dtype) -> Any:
    """Return the eps to add to the product with the sums: a number or (B, 1, 1, 1)."""
    if not options.mean_normaliser:
        return options.eps
    count: Any = options.num_keys
    if count is None or options.key_padding_mask is not None:
        count = _count(q, options.key_padding_mask)
    if isinstance(count, torch.SymInt):  # torch.export cannot write a float of a dynamic size
        count = q.new_full((), count, dtype=dtype)  # type: ignore[arg-type]
    return options.eps * (count.to(dtype) if isinstance(count, Tensor) else count)


def _count(x: Tensor, mask: Mask) -> Any:
    """Return the number of real tokens, at least 1: an integer or (B, 1, 1, 1)."""
    return x.shape[2] if mask is None else (~mask).sum(-1).clamp(min=1)[:, None, None, None]
