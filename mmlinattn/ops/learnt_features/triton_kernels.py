"""The learnt feature map: queries and keys are read once, and their features written once.

One program maps a chunk of the queries of a head and the same chunk of its keys. Both add to the
gradients of the parameters: they are written once for the two chunks.
"""

from typing import Any, List, Tuple

import triton
import triton.language as tl
from torch import Tensor

from ..common.launch import CallKey, KernelOperator, Memory, token_strides
from ..common.numerics import token_major
from ..common.reduction import sum_of_chunks
from ..common.triton_helpers import add_product, kernel, load_rows, product, rounded, store_rows


@triton.jit
def _sine_and_cosine(phase):
    """Compute sine and cosine of ``phase``, each within 2^-23.

    Equal in the interpreter and on every GPU: the phase is reduced to a quarter turn, whose two
    series swap places and signs. The constants are pi / 2 in three parts with so few digits that
    their products with the number of quarters are exact.
    """
    quarters = tl.floor(phase * 0.6366197723675814 + 0.5)
    rest = phase - quarters * 1.5703125
    rest -= quarters * 4.837512969970703e-4
    rest -= quarters * 7.549789948768648e-08
    # Beyond 2^24 quarters the remainder is noise; NaN stays NaN.
    rest = tl.where(rest > 0.8, 0.8, tl.where(rest < -0.8, -0.8, rest))
    square = rest * rest
    sine = ((-1.9515295891e-4 * square + 8.3321608736e-3) * square - 1.6666654611e-1) * square
    sine = sine * rest + rest
    cosine = (2.443315711809948e-5 * square - 1.388731625493765e-3) * square
    cosine = (cosine + 4.166664568298827e-2) * square * square - 0.5 * square + 1.0
    quadrant = quarters.to(tl.int32)
    odd = (quadrant & 1) != 0
    sine, cosine = tl.where(odd, cosine, sine), tl.where(odd, sine, cosine)
    sine = tl.where((quadrant & 2) != 0, -sine, sine)
    return sine, tl.where(((quadrant + 1) & 2) != 0, -cosine, cosine)


@triton.jit
def _parts(w, kind: tl.constexpr):
    """Split float32 into a sum of three numbers of a half dtype; exact in bfloat16."""
    high = rounded(w, kind).to(tl.float32)
    middle = rounded(w - high, kind).to(tl.float32)
    return high, middle, w - high - middle


@triton.jit
def _phases(x, high, middle, low, kind: tl.constexpr):
    """Multiply x of dtype ``kind`` by float32; sines of rounded numbers would be wrong."""
    if kind == tl.float32:
        phase = product(x, high, kind)
    elif kind == tl.bfloat16:
        phase = product(x, low, kind) + product(x, middle, kind) + product(x, high, kind)
    else:  # 22 bits in two parts
        phase = product(x, middle, kind) + product(x, high, kind)
    return phase


@triton.jit
def _map_chunk(
    X, OUT, sxn, sxd, son, sod, high, middle, low, w_sine, w_cosine, bias, start, stop, N,
    D: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Write the features of a chunk of queries or keys."""
    cols = tl.arange(0, BD)
    kind = X.dtype.element_ty
    for first in range(start, stop, BN):
        rows = first + tl.arange(0, BN)
        x = load_rows(X, rows, cols, sxn, sxd, N, D)
        sine, cosine = _sine_and_cosine(_phases(x, high, middle, low, kind))
        out = product(sine, w_sine, kind) + product(cosine, w_cosine, kind) + bias[None, :]
        out = tl.where(out < 0, 0.0, out)  # NaN stays NaN
        store_rows(OUT, out, rows, cols, son, sod, N, D)


@kernel
def _forward_kernel(
    Q, K, W1, W2, BIAS, PQ, PK,
    sqb, sqh, sqn, sqd, skb, skh, skn, skd, sob, soh, son, sod, H, N, CHUNK,
    D: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, PER_HEAD: tl.constexpr,
):  # fmt: skip
    """Write the features of a chunk of queries and of the same chunk of keys."""
    head, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    b, h = head // H, head % H
    cols = tl.arange(0, BD)
    kind = Q.dtype.element_ty
    if PER_HEAD:
        W1 += h * D * D
        W2 += h * 2 * D * D
        BIAS += h * D
    high, middle, low = _parts(load_rows(W1, cols, cols, 1, D, D, D), kind)  # [d, m]
    w_sine = load_rows(W2, cols, cols, 1, 2 * D, D, D)  # [m, m], transposed
    w_cosine = load_rows(W2 + D, cols, cols, 1, 2 * D, D, D)
    bias = tl.load(BIAS + cols, mask=cols < D, other=0.0).to(tl.float32)
    start = split * CHUNK
    stop = tl.minimum(start + CHUNK, N)
    to = b * sob + h * soh
    _map_chunk(
        Q + b * sqb + h * sqh, PQ + to, sqn, sqd, son, sod, high, middle, low, w_sine, w_cosine,
        bias, start, stop, N, D, BN, BD,
    )  # fmt: skip
    _map_chunk(
        K + b * skb + h * skh, PK + to, skn, skd, son, sod, high, middle, low, w_sine, w_cosine,
        bias, start, stop, N, D, BN, BD,
    )  # fmt: skip


@triton.jit
def _gradients_of_chunk(
    X, PHI, GRAD, DX, sxn, sxd, son, sod, sgn, sgd, high, middle, low, w_back, w_sine, w_cosine,
    d_w1, d_sine, d_cosine, d_bias, start, stop, N,
    D: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Write the gradient of x and add to those of the parameters."""
    cols = tl.arange(0, BD)
    kind = X.dtype.element_ty
    for first in range(start, stop, BN):
        rows = first + tl.arange(0, BN)
        x = load_rows(X, rows, cols, sxn, sxd, N, D)
        sine, cosine = _sine_and_cosine(_phases(x, high, middle, low, kind))
        phi = load_rows(PHI, rows, cols, son, sod, N, D)
        grad = load_rows(GRAD, rows, cols, sgn, sgd, N, D)
        grad = tl.where(phi <= 0, 0.0, grad)
        d_bias += tl.sum(grad, 0)
        d_sine = add_product(d_sine, tl.trans(grad), sine, kind)
        d_cosine = add_product(d_cosine, tl.trans(grad), cosine, kind)
        d_phase = product(grad, w_sine, kind) * cosine - product(grad, w_cosine, kind) * sine
        d_w1 = add_product(d_w1, tl.trans(d_phase), x, kind)
        store_rows(DX, product(d_phase, w_back, kind), rows, cols, son, sod, N, D)
    return d_w1, d_sine, d_cosine, d_bias


@kernel
def _backward_kernel(
    Q, K, W1, W2, PQ, PK, GQ, GK, DQ, DK, DW1, DW2, DBIAS,
    sqb, sqh, sqn, sqd, skb, skh, skn, skd, sob, soh, son, sod, sgb, sgh, sgn, sgd,
    scb, sch, scn, scd, H, N, CHUNK,
    D: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, PER_HEAD: tl.constexpr,
):  # fmt: skip
    """Write the gradients of a chunk of queries and keys, and of the parameters over them."""
    head, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    b, h = head // H, head % H
    cols = tl.arange(0, BD)
    kind = Q.dtype.element_ty
    if PER_HEAD:
        W1 += h * D * D
        W2 += h * 2 * D * D
    high, middle, low = _parts(load_rows(W1, cols, cols, 1, D, D, D), kind)  # [d, m]
    w_back = load_rows(W1, cols, cols, D, 1, D, D)
    w_sine = load_rows(W2, cols, cols, 2 * D, 1, D, D)
    w_cosine = load_rows(W2 + D, cols, cols, 2 * D, 1, D, D)
    d_w1, d_bias = tl.zeros((BD, BD), tl.float32), tl.zeros((BD,), tl.float32)
    d_sine, d_cosine = tl.zeros((BD, BD), tl.float32), tl.zeros((BD, BD), tl.float32)
    start = split * CHUNK
    stop = tl.minimum(start + CHUNK, N)
    at = b * sob + h * soh
    d_w1, d_sine, d_cosine, d_bias = _gradients_of_chunk(
        Q + b * sqb + h * sqh, PQ + at, GQ + b * sgb + h * sgh, DQ + at,
        sqn, sqd, son, sod, sgn, sgd, high, middle, low, w_back, w_sine, w_cosine,
        d_w1, d_sine, d_cosine, d_bias, start, stop, N, D, BN, BD,
    )  # fmt: skip
    d_w1, d_sine, d_cosine, d_bias = _gradients_of_chunk(
        K + b * skb + h * skh, PK + at, GK + b * scb + h * sch, DK + at,
        skn, skd, son, sod, scn, scd, high, middle, low, w_back, w_sine, w_cosine,
        d_w1, d_sine, d_cosine, d_bias, start, stop, N, D, BN, BD,
    )  # fmt: skip
    chunk = head * tl.num_programs(1) + split
    inside = (cols[:, None] < D) & (cols[None, :] < D)
    DW1 += chunk * D * D
    tl.store(DW1 + cols[:, None] * D + cols[None, :], d_w1, mask=inside)
    DW2 += chunk * 2 * D * D + cols[:, None] * 2 * D + cols[None, :]
    tl.store(DW2, d_sine, mask=inside)
    tl.store(DW2 + D, d_cosine, mask=inside)
    tl.store(DBIAS + chunk * D + cols, d_bias, mask=cols < D)


class _Forward:
    def __init__(self, key: CallKey) -> None:
        q = key.tokens(0)
        strides = (*q.strides, *key.strides[1], *token_strides(q))
        per_head = len(key.shapes[2]) == 3
        self.tokens = key.over_tokens('adaptive', _forward_kernel, q, strides, PER_HEAD=per_head)

    def __call__(self, q: Tensor, k: Tensor, *learnt: Tensor) -> List[Tensor]:
        """Return the features of q, k (B, heads, N, d) by the contiguous parameters W1, W2, b2."""
        out = [token_major(q), token_major(k)]
        self.tokens(q, k, *learnt, *out)
        return out


class _Backward:
    def __init__(self, key: CallKey) -> None:
        q, (_, k, *_, grad_q, grad_k) = key.tokens(0), key.strides
        per_head = len(key.shapes[2]) == 3
        self.tokens = key.over_tokens(
            'adaptive_backward', _backward_kernel, q,
            (*q.strides, *k, *token_strides(q), *grad_q, *grad_k), PER_HEAD=per_head,
        )  # fmt: skip
        dim, splits = q.dim, self.tokens.splits
        sizes = (dim, dim), (dim, 2 * dim), (1, dim)
        self.scratch = Memory(*[(q.batch, q.heads, splits, *size) for size in sizes])
        # Parameters that the heads share: all heads are images of one.
        count, outer = (q.heads, q.batch) if per_head else (1, q.batch * q.heads)
        self.add = [sum_of_chunks(key, count, splits, *size, outer=outer) for size in sizes]

    def __call__(self, *tensors: Any) -> Tuple[Tensor, ...]:
        """Return the gradients of q, k and the parameters."""
        q, k, *learnt, of_q, of_k, grad_q, grad_k = tensors
        dq, dk = token_major(q), token_major(k)
        # Hooks of saved tensors, such as torch.autograd.graph.save_on_cpu, may change the strides.
        saved = [x if x.stride() == dq.stride() else token_major(x).copy_(x) for x in (of_q, of_k)]
        _memory, *parts = self.scratch.allocate(q, self.add[-1])
        self.tokens(q, k, *learnt[:2], *saved, grad_q, grad_k, dq, dk, *parts)
        found = [x.new_empty(x.shape) for x in learnt]
        for add, part, out in zip(self.add, parts, found):
            add(part, part, part, out, out, part)
        return (dq, dk, *found)


OPERATOR = KernelOperator(
    __name__, _Forward, _Backward, None, tuple, num_sizes=0, num_outputs=2, num_gradients=5
)
