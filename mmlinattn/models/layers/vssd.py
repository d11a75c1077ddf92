"""Non-causal state space duality of VSSD as a layer."""

import math
from typing import Optional

import torch
import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import Tensor, nn

from ...ops import unnormalised_attention
from ...ops.common.numerics import accumulation_dtype, no_autocast, zero_padding
from ...utils import check_integer
from .base import BaseAttention, Projected, TokenLayout
from .linear_projection import linear_parts
from .token_layout import convolve_tokens

DT_RANGE, DECAY_RANGE = (1e-3, 1e-1), (1.0, 16.0)  # initial values of softplus(dt) and exp(A)


@MODELS.register_module()
class VSSDAttention(BaseAttention):
    """Non-causal state space duality, the mixer of "VSSD: Vision Mamba with Non-Causal State Space
    Duality" (Shi et al., 2024), linear in the number of tokens.

    One layer projects x to a gate z, values v, keys k, queries q and one step dt per head; v, k and
    q pass a depth-wise convolution and SiLU. The state of Mamba-2 is summed over all tokens, each
    with the weight that its own step gives it::

        y_i = q_i . sum_j softplus(dt_j + b) exp(A) k_j v_j^T + D v_i,    out = proj(LN(y) * z)

    The sum is not divided by the number of tokens. Keys and queries are shared by the heads: head h
    has those of group ``h mod num_groups``. Padded tokens are 0 for the convolution and not in the
    sum. Extra tokens (such as a class token) skip the convolution.

    Args:
        expand: channels of v and z over ``embed_dims``.
        state_dims: channels of k and q in each group.
        num_groups: groups of k and q; must divide ``num_heads``.
        qkv_bias, proj_bias: biases of the projections; the release has none.
        embed_dims, num_heads, kwargs: options of :class:`BaseAttention`; ``backend`` is ``'auto'``.

    Raises:
        ValueError: ``expand``, ``state_dims`` or ``num_groups`` is not a positive integer, or
            ``num_groups`` does not divide ``num_heads``.

    Example:
        >>> attn = VSSDAttention(embed_dims=64, num_heads=2)
        >>> attn(torch.randn(2, 12 * 20, 64), hw_shape=(12, 20)).shape
        torch.Size([2, 240, 64])
    """

    needs_map = True
    backends = ('auto',)
    unsupported_options = ('rotary', 'lepe', 'gate')

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        expand: int = 2,
        state_dims: int = 64,
        num_groups: int = 1,
        qkv_bias: bool = False,
        proj_bias: bool = False,
        **kwargs,
    ) -> None:
        super().__init__(embed_dims, num_heads, qkv_bias, proj_bias, **kwargs)
        expand = check_integer('expand', expand)
        state_dims = check_integer('state_dims', state_dims)
        num_groups = check_integer('num_groups', num_groups)
        if num_heads % num_groups:
            raise ValueError(f'num_groups={num_groups} must divide num_heads={num_heads}')
        self.num_groups = num_groups
        inner, width = expand * embed_dims, num_groups * state_dims
        self.widths = (inner, inner, width, width, num_heads)  # of z, v, k, q, dt
        self.in_proj = nn.Linear(embed_dims, sum(self.widths), bias=qkv_bias)
        convolved = inner + 2 * width
        self.conv = nn.Conv2d(convolved, convolved, 3, padding=1, groups=convolved)
        step = torch.empty(num_heads).uniform_(*map(math.log, DT_RANGE)).exp()
        self.dt_bias = nn.Parameter(step.expm1().log())  # softplus inverts it
        self.A_log = nn.Parameter(torch.empty(num_heads).uniform_(*DECAY_RANGE).log())
        self.D = nn.Parameter(torch.ones(num_heads))
        self.norm = nn.LayerNorm(inner)
        self.proj = nn.Linear(inner, embed_dims, bias=proj_bias)

    def project(self, x: Tensor, query_pos: Optional[Tensor], layout: TokenLayout) -> Projected:
        """Return q and k (B, N, heads * state_dims), k with its weights, v and z (B, N, inner)."""
        if query_pos is None:
            z, v, k, q, dt = self.in_proj(x).split(self.widths, -1)
        else:
            inner, _, width, _, heads = self.widths
            zv, kq, dt = linear_parts(
                self.in_proj, (x, 2 * inner), (x + query_pos, 2 * width), (x, heads)
            )
            (z, v), (k, q) = zv.chunk(2, -1), kq.chunk(2, -1)
        vkq = F.silu(convolve_tokens(self.conv, torch.cat([v, k, q], -1), layout))
        v, k, q = vkq.split(self.widths[1:4], -1)
        v = zero_padding(v, layout.key_padding_mask)
        repeats = self.num_heads // self.num_groups
        k, q = (t.unflatten(-1, (self.num_groups, -1)).repeat(1, 1, repeats, 1) for t in (k, q))
        dtype = accumulation_dtype(x.dtype)
        with no_autocast(x):
            dt = F.softplus(dt.to(dtype) + self.dt_bias.to(dtype)) * self.A_log.to(dtype).exp()
            k = k.to(dtype) * dt[..., None]  # [B, N, heads, state_dims]
        return q.flatten(2), k.flatten(2), v, z

    def split_heads(self, x: Tensor) -> Tensor:
        """Reshape (B, N, heads * width) to (B, heads, N, width)."""
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: TokenLayout) -> Tensor:
        """Return y in at least float32: the sum over many tokens can exceed float16."""
        with no_autocast(q):
            values = v.to(k.dtype)
            skip = self.D.to(k.dtype)[:, None, None] * values
            return unnormalised_attention(q.to(k.dtype), k, values) + skip

    def _local_and_gate(
        self, out: Tensor, v: Tensor, gate: Optional[Tensor], layout: TokenLayout
    ) -> Tensor:
        assert gate is not None
        with no_autocast(out):
            weight, bias = (p.to(out.dtype) for p in (self.norm.weight, self.norm.bias))
            out = F.layer_norm(out, out.shape[-1:], weight, bias, self.norm.eps)
        return out.to(v.dtype) * gate
