"""Local position and gate in one pass: v is read where it lies between other projections, and the
convolution's result stays in registers."""

from typing import Optional, Tuple

import torch
import triton
import triton.language as tl
from torch import Tensor

# Tokens of a tile's side and channels of a program; tokens of a gradient's program.
SIDE, CHANNELS, TOKENS = 8, 64, 32


@triton.jit
def _forward_kernel(
    V, OUT, GATE, WEIGHT, BIAS, RESULT, SUM,
    svb, svn, svc, sob, son, soc, sgb, sgn, sgc, C, height, width, tiles, across,
    SIZE: tl.constexpr, SIDE: tl.constexpr, BC: tl.constexpr,
    HAS_BIAS: tl.constexpr, GATED: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """Process a tile of tokens and a block of channels; WEIGHT is (SIZE, SIZE, C)."""
    program = tl.program_id(0)
    blocks = tl.cdiv(C, BC)
    cols = (program % blocks) * BC + tl.arange(0, BC)
    tile = (program // blocks) % tiles
    image = (program // blocks // tiles).to(tl.int64)
    place = tl.arange(0, SIDE * SIDE)
    rows = (tile // across) * SIDE + place // SIDE
    columns = (tile % across) * SIDE + place % SIDE
    total = tl.zeros((SIDE * SIDE, BC), tl.float32)
    if HAS_BIAS:
        total += tl.load(BIAS + cols, mask=cols < C, other=0.0).to(tl.float32)[None, :]
    V += image * svb
    for i in range(0, SIZE):
        for j in tl.static_range(SIZE):
            y, x = rows + (i - SIZE // 2), columns + (j - SIZE // 2)
            inside = (y >= 0) & (y < height) & (x >= 0) & (x < width)
            at = (y.to(tl.int64) * width + x)[:, None] * svn + cols[None, :] * svc
            mask = inside[:, None] & (cols < C)[None, :]
            value = tl.load(V + at, mask=mask, other=0.0).to(tl.float32)
            weight = tl.load(WEIGHT + (i * SIZE + j) * C + cols, mask=cols < C, other=0.0)
            total += value * weight.to(tl.float32)[None, :]
    token = (rows.to(tl.int64) * width + columns)[:, None]
    mask = ((rows < height) & (columns < width))[:, None] & (cols < C)[None, :]
    at = token * son + cols[None, :] * soc
    total += tl.load(OUT + image * sob + at, mask=mask, other=0.0).to(tl.float32)
    dense = (image * height * width + token) * C + cols[None, :]
    if KEEP:
        tl.store(SUM + dense, total.to(SUM.dtype.element_ty), mask=mask)
    if GATED:
        at = token * sgn + cols[None, :] * sgc
        total *= tl.load(GATE + image * sgb + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(RESULT + dense, total.to(RESULT.dtype.element_ty), mask=mask)


@triton.jit
def _gate_backward_kernel(
    GRAD, GATE, SUM, DSUM, DGATE, srb, srn, src, sgb, sgn, sgc, C, N,
    BN: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    blocks, chunks = tl.cdiv(C, BC), tl.cdiv(N, BN)
    cols = (program % blocks) * BC + tl.arange(0, BC)
    tokens = ((program // blocks) % chunks).to(tl.int64) * BN + tl.arange(0, BN)
    image = (program // blocks // chunks).to(tl.int64)
    mask = (tokens < N)[:, None] & (cols < C)[None, :]
    at = tokens[:, None] * srn + cols[None, :] * src
    grad = tl.load(GRAD + image * srb + at, mask=mask, other=0.0).to(tl.float32)
    at = tokens[:, None] * sgn + cols[None, :] * sgc
    gate = tl.load(GATE + image * sgb + at, mask=mask, other=0.0).to(tl.float32)
    dense = (image * N + tokens[:, None]) * C + cols[None, :]
    total = tl.load(SUM + dense, mask=mask, other=0.0).to(tl.float32)
    tl.store(DSUM + dense, (grad * gate).to(DSUM.dtype.element_ty), mask=mask)
    tl.store(DGATE + dense, (grad * total).to(DGATE.dtype.element_ty), mask=mask)


def new_results(out: Tensor, gate: Optional[Tensor], keep: bool) -> Tuple[Tensor, Tensor]:
    """Return the uninitialised outputs of :func:`forward`."""
    dtype = out.dtype if gate is None or gate.dtype == out.dtype else torch.float32
    return out.new_empty(out.shape, dtype=dtype), out.new_empty(out.shape if keep else 0)


def forward(
    out: Tensor,
    v: Tensor,
    gate: Optional[Tensor],
    weight: Tensor,
    bias: Optional[Tensor],
    height: int,
    width: int,
    keep: bool,
) -> Tuple[Tensor, Tensor]:
    """Return the result and the factor of the gate, empty unless ``keep``; dense (B, N, C)."""
    result, kept = new_results(out, gate, keep)
    (batch, _, channels), size = out.shape, weight.shape[-1]
    across = triton.cdiv(width, SIDE)
    tiles = triton.cdiv(height, SIDE) * across
    by_place = weight.flatten(1).t().contiguous()  # [K K, C]
    gates = out if gate is None else gate
    _forward_kernel[batch * tiles * triton.cdiv(channels, CHANNELS),](
        v, out, gates, by_place, by_place if bias is None else bias, result, kept,
        *v.stride(), *out.stride(), *gates.stride(), channels, height, width, tiles, across,
        SIZE=size, SIDE=SIDE, BC=CHANNELS, HAS_BIAS=bias is not None, GATED=gate is not None,
        KEEP=kept.numel() > 0, num_warps=8, num_stages=2,
    )  # fmt: skip
    return result, kept


def gate_backward(grad: Tensor, gate: Tensor, kept: Tensor) -> Tuple[Tensor, Tensor]:
    """Return gradients of the factor of the gate, and of the gate."""
    batch, num_tokens, channels = kept.shape
    d_sum, d_gate = torch.empty_like(kept), torch.empty_like(kept, dtype=gate.dtype)
    chunks = triton.cdiv(num_tokens, TOKENS)
    _gate_backward_kernel[batch * chunks * triton.cdiv(channels, CHANNELS),](
        grad, gate, kept, d_sum, d_gate, *grad.stride(), *gate.stride(), channels, num_tokens,
        BN=TOKENS, BC=CHANNELS, num_warps=4, num_stages=2,
    )  # fmt: skip
    return d_sum, d_gate
