"""Key mapping for ViT and DeiT weights from timm, the DeiT release or MMPretrain."""

import math
from typing import Dict, Mapping, Tuple

import torch
from torch import Tensor

from ..errors import CheckpointError
from .key_mapping import OPENMMLAB, KeyMap, Rule

BACKBONE = r'(?:backbone\.)?'
TIMM = BACKBONE + r'blocks\.(\d+)\.'
MMPRETRAIN = BACKBONE + r'layers\.(\d+)\.'
DISTILLATION = BACKBONE + r'dist_token$|head\.layers\.head_dist\.|head_dist\.'
LAYER = r'backbone.layers.\1.'

NAMES = KeyMap(
    [
        Rule(BACKBONE + r'(cls_token|pos_embed)$', r'backbone.embed.\1'),
        Rule(BACKBONE + r'patch_embed\.proj(?:ection)?\.', 'backbone.embed.proj.'),
        Rule(TIMM + r'attn\.qkv\.', LAYER + 'attn.in_proj.'),
        Rule(TIMM + r'attn\.proj\.', LAYER + 'attn.proj.'),
        Rule(TIMM + r'norm([12])\.', LAYER + r'norm\2.'),
        Rule(TIMM + r'mlp\.(fc[12])\.', LAYER + r'ffn.\2.'),
        Rule(r'norm\.', 'backbone.norm.'),
        Rule(r'head\.(?=weight$|bias$)', 'head.fc.'),
        Rule(DISTILLATION, None, reason='parts of the distillation'),
        Rule(MMPRETRAIN + r'attn\.qkv\.', LAYER + 'attn.in_proj.'),
        Rule(MMPRETRAIN + r'attn\.proj\.', LAYER + 'attn.proj.'),
        Rule(MMPRETRAIN + r'(?:ln|norm)([12])\.', LAYER + r'norm\2.'),
        Rule(MMPRETRAIN + r'ffn\.layers\.0\.0\.', LAYER + 'ffn.fc1.'),
        Rule(MMPRETRAIN + r'ffn\.layers\.1\.', LAYER + 'ffn.fc2.'),
        Rule(BACKBONE + r'(?:ln|norm)1\.', 'backbone.norm.'),
        Rule(r'head\.layers\.head\.', 'head.fc.'),
        Rule(r'head\.fc\.', 'head.fc.'),
        *OPENMMLAB,
    ]
)


def convert_vit(state_dict: Mapping[str, Tensor]) -> Tuple[Dict[str, Tensor], Mapping[str, int]]:
    """Rename ViT or DeiT weights.

    The distillation token of DeiT and its position are omitted. Position embeddings whose number
    fits a square image are taken as square, as in all releases.

    Returns:
        new name -> tensor, and the number of omitted tensors by reason.

    Raises:
        CheckpointError: see :class:`KeyMap`; also for a distillation token without positions.
    """
    tensors, left_out = NAMES(state_dict)
    positions = tensors.get('backbone.embed.pos_embed')
    if any(name.endswith('dist_token') for name in state_dict):
        if positions is None:
            raise CheckpointError('the checkpoint has a dist_token, but no pos_embed')
        positions = torch.cat([positions[:, :1], positions[:, 2:]], 1)
        tensors['backbone.embed.pos_embed'] = positions
    if positions is not None:
        side = math.isqrt(positions.shape[1])
        if positions.shape[1] - side**2 in (0, 1):
            tensors['backbone.embed.pos_grid'] = torch.tensor((side, side))
    return tensors, left_out
