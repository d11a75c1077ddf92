"""Test-time-training attention of ViT³ as a layer."""

from typing import Any, List, Tuple

import torch
import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import Tensor, nn

from ...ops.common.numerics import (
    Mask,
    accumulation_dtype,
    needs_gradient,
    no_autocast,
    put_chunk,
    token_chunks,
    zero_padding,
)
from ...ops.common.rotary import rotated
from .base import BaseAttention, TokenLayout
from .linear_projection import linear_parts
from .rotary import check_rotary_over_heads, rotary_over_heads
from .token_layout import map_to_tokens, neighbours, tokens_to_map

SCALE = 1 / 3  # of the inner loss, in every release


@MODELS.register_module()
class TTTAttention(BaseAttention):
    """Test-time-training attention, "ViT³: Unlocking Test-Time Training in Vision" (Han et al.,
    CVPR 2026): linear in the number of tokens.

    The keys and values of an image train a small inner model by one step of gradient descent. The
    queries pass through the trained model. Each head has a gated inner model, and one more head
    of d channels a depth-wise 3x3 convolution::

        F(x) = (x W1) * silu(x W2)          loss = -1/3 mean_j F(k_j) . v_j
        W = W + G / (1 + |G|)               G = -d loss / d W, |G| the norm of each column
        out = proj([F(q), conv3x3(q')])

    The learnt W are the initial weights for each image. The step is summed in float32, and training
    differentiates through it. Extra tokens have no place in the convolution, whose outputs there
    are 0.

    Args:
        embed_dims, num_heads: channels and heads; with ``rotary``, ``embed_dims`` is a multiple of
            4 and has an even number per head.
        rotary: 2D rotary position on queries and keys over all channels before they are split into
            heads, as in :class:`MLLAAttention`; H-ViT³ has it and provides it, ViT³ does not.
        qkv_bias, proj_bias, kwargs: options of :class:`BaseAttention` but ``gate`` and ``lepe``.

    Raises:
        ValueError: rotary position cannot split the channels.

    Example:
        >>> attn = TTTAttention(embed_dims=64, num_heads=2)
        >>> attn(torch.randn(2, 12 * 20, 64), hw_shape=(12, 20)).shape
        torch.Size([2, 240, 64])
    """

    needs_map = True
    applies_rotary = True  # over all heads, and not in the convolution
    backends = ('auto', 'torch')
    projections = ('in_proj', 'proj')
    backbone_options = (*BaseAttention.backbone_options, 'rotary')
    unsupported_options = ('gate', 'lepe')

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        rotary: bool = False,
        qkv_bias: bool = True,
        proj_bias: bool = True,
        **kwargs,
    ) -> None:
        super().__init__(embed_dims, num_heads, **kwargs)
        self.rotary = check_rotary_over_heads(self, rotary)
        dim, width = self.head_dim, embed_dims + self.head_dim
        self.in_proj = nn.Linear(embed_dims, 3 * width, bias=qkv_bias)
        self.proj = nn.Linear(width, embed_dims, bias=proj_bias)
        self.linear1, self.linear2 = (
            nn.Parameter(nn.init.trunc_normal_(torch.empty(num_heads, dim, dim), std=0.02))
            for _ in range(2)
        )
        self.conv = nn.Parameter(nn.init.trunc_normal_(torch.empty(dim, 9), std=0.02))

    def project_parts(self, *inputs: Tuple[Tensor, int]) -> List[Tensor]:
        width = self.embed_dims + self.head_dim
        return linear_parts(self.in_proj, *((x, count * width) for x, count in inputs))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: TokenLayout) -> Tensor:
        mask, rotary = layout.key_padding_mask, rotary_over_heads(self, layout)
        # The bias of the projection makes padding other than 0.
        q, k, v = (zero_padding(x, mask) for x in (q, k, v))
        q_heads, k_heads = rotated(rotary, q[:, :-1], k[:, :-1])
        gated = self._gated(q_heads, k_heads, v[:, :-1], mask)
        q, k, v = (layout.split_extra(x[:, -1])[1] for x in (q, k, v))  # the last head
        local = self._convolved(q, k, v, layout)
        return torch.cat([gated, local.to(gated.dtype)], 1)

    def _gated(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
        """Return F(q) after a step on the keys and values, all (B, heads, N, d)."""
        linear = torch.cat([self.linear1, self.linear2], -1)
        chunks = [slice(None)]
        if not needs_gradient(q, k, v, linear):
            chunks = token_chunks(q, 2 * self.head_dim)
        sums: Any = sum(_loss_sums(k[:, :, chunk], v[:, :, chunk], linear) for chunk in chunks)
        with no_autocast(q):
            linear = linear + _step(sums, mask, k.shape[-2], -2)
        out: Any = None
        for chunk in chunks:
            value, gate = (q[:, :, chunk] @ linear.to(q.dtype)).chunk(2, -1)
            out = put_chunk(out, chunk, value * F.silu(gate), q)
        return out

    def _convolved(self, q: Tensor, k: Tensor, v: Tensor, layout: TokenLayout) -> Tensor:
        """Return the convolution of q, (B, N, d), after a step on k and v: (B, 1, E + N, d)."""
        mask = layout.without_extra_tokens().key_padding_mask
        q, k, v = (tokens_to_map(x, layout.hw_shape) for x in (q, k, v))
        dtype = accumulation_dtype(q.dtype)
        with no_autocast(q):
            k, v = k.to(dtype), v.to(dtype)
            sums = torch.stack([(v * x).sum((2, 3)) for x in neighbours(k)], -1)  # [B, d, 9]
            conv = self.conv + _step(sums, mask, k.shape[2] * k.shape[3], -1)
            q = q.to(dtype)
            out = torch.zeros_like(q)
            for weight, x in zip(conv.unbind(-1), neighbours(q)):
                out = torch.addcmul(out, weight[..., None, None], x)
        return F.pad(map_to_tokens(out), (0, 0, layout.num_extra_tokens, 0))[:, None]


def _loss_sums(k: Tensor, v: Tensor, linear: Tensor) -> Tensor:
    """Return the gradient of sum_j F(k_j) . v_j to the weights, (B, heads, d, 2 d)."""
    value, gate = (k @ linear.to(k.dtype)).chunk(2, -1)
    sigmoid = gate.sigmoid()
    silu = gate * sigmoid
    slope = sigmoid + silu * (1 - sigmoid)  # of silu
    dtype = accumulation_dtype(k.dtype)
    with no_autocast(k):
        v = v.to(dtype)  # three factors exceed float16
        products = torch.cat([v * silu, v * value * slope], -1)  # [B, heads, n, 2 d]
        return k.to(dtype).transpose(-2, -1) @ products


def _step(sums: Tensor, mask: Mask, num_tokens: int, dim: int) -> Tensor:
    """Return the step for sums (B, ...) over the tokens, shorter than 1 along ``dim``."""
    if mask is None:
        step = sums * SCALE / num_tokens  # torch.export cannot write a float of a dynamic size
    else:
        count = (~mask).sum(1).clamp(min=1).to(sums.dtype)
        step = sums * (SCALE / count).view(-1, *[1] * (sums.dim() - 1))
    return step / (1 + torch.linalg.vector_norm(step, dim=dim, keepdim=True))
