"""RAVLT in the layout of its released code: channels first.

Written for this suite from the formulas (README of the method, class docstrings of RAVLT and RALA),
in the style of most published vision transformers. It is not slowed down on purpose:

- maps are contiguous (B, C, H, W) from the image to the last stage;
- projections are 1x1 convolutions, one for queries, keys, values and gate together;
- attention reads a map as (B, heads, N, d), views of the projection, and its result is copied to a
  contiguous map;
- softmax attention is two matrix products around a softmax; torch's SDPA on contiguous heads is an
  option;
- LayerNorm moves the channels last and back.

It has the parameters of :class:`mmlinattn.models.backbones.RAVLT` and the same outputs.
"""

import copy
from typing import Tuple

import torch.nn.functional as F
from torch import Tensor, nn

from mmlinattn.models.backbones import RAVLT
from mmlinattn.models.backbones.ravlt import RAVLTBlock
from mmlinattn.models.layers import RALA, BaseAttention

from . import textbook
from .textbook import Tables, rotary_tables, rotate


class ChannelNorm(nn.Module):
    """LayerNorm over the channels of a (B, C, H, W) map."""

    def __init__(self, norm: nn.LayerNorm) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x.permute(0, 2, 3, 1).contiguous())
        return x.permute(0, 3, 1, 2).contiguous()


class Attention(nn.Module):
    """RALA, or softmax attention with the same position, local position and gate.

    Args:
        attn: layer of this package whose parameters are copied.
        sdpa: use torch's SDPA for softmax attention.
    """

    def __init__(self, attn: BaseAttention, sdpa: bool = False) -> None:
        super().__init__()
        attn = copy.deepcopy(attn)
        self.heads, self.dim, self.sdpa = attn.num_heads, attn.embed_dims, sdpa
        self.linear = isinstance(attn, RALA)
        self.qkvo = conv1x1(attn.in_proj)
        self.lepe = attn.lepe
        self.proj = conv1x1(attn.proj)

    def forward(self, x: Tensor, rotary: Tables) -> Tensor:
        batch, _, height, width = x.shape
        q, k, v, gate = self.qkvo(x).chunk(4, dim=1)
        lepe = self.lepe(v)
        q, k, v = (
            t.reshape(batch, self.heads, -1, height * width).transpose(2, 3) for t in (q, k, v)
        )  # [B, H, N, d]
        if self.linear:
            out = textbook.rala(q, k, v, rotary)
        else:
            q, k = rotate(q, rotary), rotate(k, rotary)
            out = sdpa(q, k, v) if self.sdpa else textbook.softmax(q, k, v)
        out = out.transpose(2, 3).reshape(batch, self.dim, height, width)
        return self.proj((lepe + out) * gate)


class FFN(nn.Module):
    """1x1 convolution, GELU, ``y += depth-wise 3x3``, 1x1 convolution."""

    def __init__(self, ffn: nn.Module) -> None:
        super().__init__()
        self.fc1, self.dwconv, self.fc2 = conv1x1(ffn.fc1), ffn.dwconv, conv1x1(ffn.fc2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.fc1(x))
        return self.fc2(x + self.dwconv(x))


class Block(nn.Module):
    """Block of conditional position, attention and feed-forward layer, each with a residual."""

    def __init__(self, block: RAVLTBlock, sdpa: bool) -> None:
        super().__init__()
        self.cpe = block.cpe
        self.norm1, self.norm2 = ChannelNorm(block.norm1), ChannelNorm(block.norm2)
        self.attn, self.ffn = Attention(block.attn, sdpa), FFN(block.ffn)
        self.drop_path = block.drop_path
        self.gamma1 = nn.Parameter(block.gamma1.detach()[:, None, None].clone())
        self.gamma2 = nn.Parameter(block.gamma2.detach()[:, None, None].clone())

    def forward(self, x: Tensor, rotary: Tables) -> Tensor:
        x = x + self.cpe(x)
        x = x + self.drop_path(self.gamma1 * self.attn(self.norm1(x), rotary))
        return x + self.drop_path(self.gamma2 * self.ffn(self.norm2(x)))


class ChannelsFirstRAVLT(nn.Module):
    """RAVLT in the channels-first layout.

    Args:
        model: model whose parameters are copied.
        sdpa: use torch's SDPA for softmax attention.

    Example:
        >>> model = RAVLT('tiny', norm_cfg=dict(type='BN')).eval()
        >>> image = torch.randn(1, 3, 64, 64)
        >>> outs = ChannelsFirstRAVLT(model)(image)
        >>> all(torch.allclose(a, b, atol=1e-4) for a, b in zip(outs, model(image)))
        True
    """

    def __init__(self, model: RAVLT, sdpa: bool = False) -> None:
        super().__init__()
        model = copy.deepcopy(model)
        self.out_indices = model.out_indices
        self.stem, self.downsamples = model.stem, model.downsamples
        self.stages = nn.ModuleList(
            nn.ModuleList(Block(block, sdpa) for block in stage) for stage in model.stages
        )
        self.out_norms = nn.ModuleDict(
            {i: ChannelNorm(norm) for i, norm in model.out_norms.items()}
        )
        for parameter in self.parameters():
            # A channels_last weight would make a convolution return channels_last maps.
            parameter.data = parameter.new_empty(parameter.shape).copy_(parameter.data)

    def forward(self, x: Tensor) -> Tuple[Tensor, ...]:
        x = self.stem(x)
        outs = []
        for i, blocks in enumerate(self.stages):
            if i:
                x = self.downsamples[i - 1](x)
            attn = blocks[0].attn
            rotary = rotary_tables(x.shape[-2:], attn.dim // attn.heads, x.dtype, x.device)
            for block in blocks:
                x = block(x, rotary)
            if i in self.out_indices:
                outs.append(self.out_norms[str(i)](x) if self.out_norms else x)
        return tuple(outs)


def sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute torch's SDPA on contiguous heads, because strided channels select a slow kernel."""
    return F.scaled_dot_product_attention(q.contiguous(), k.contiguous(), v.contiguous())


def conv1x1(linear: nn.Linear) -> nn.Conv2d:
    """Return the 1x1 convolution with the parameters of a linear layer."""
    conv = nn.Conv2d(linear.in_features, linear.out_features, 1, bias=linear.bias is not None)
    conv.weight.data = linear.weight.detach()[:, :, None, None].clone()
    if linear.bias is not None:
        conv.bias.data = linear.bias.detach().clone()
    return conv
