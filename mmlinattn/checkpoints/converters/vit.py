"""Key mapping for ViT, DeiT, DINOv2 and ConViT from releases, timm, OpenMMLab, transformers."""

import math
import re
from typing import Dict, Mapping

import torch
from torch import Tensor

from ..errors import CheckpointError
from .key_mapping import (
    BACKBONE,
    HF_LAYER_PARTS,
    HF_QKV,
    OPENMMLAB,
    Converted,
    KeyRule,
    fuse,
    rename,
)

TIMM = BACKBONE + r'blocks\.(\d+)\.'
MM_LAYER = BACKBONE + r'layers\.(\d+)\.'
HF = r'(?:(?:vit|deit|dinov2|dinov2_with_registers)\.)?'
HF_EMBEDDING = HF + r'embeddings\.'
HF_LAYER = HF + r'encoder\.layer\.(\d+)\.'
DISTILLATION = (
    BACKBONE + r'dist_token$|head\.layers\.head_dist\.|head_dist\.'
    r'|(?:deit\.)?embeddings\.distillation_token$|distillation_classifier\.'
)
LAYER = r'backbone.layers.\1.'
POSITIONS = 'backbone.embed.pos_embed'


def _layer_scale(match: re.Match) -> str:
    """Return the name of a layer scale, of a match with the layer and ``'1'`` or ``'2'``."""
    return f'backbone.layers.{match[1]}.gamma{match[2] or match[3]}'


# Layers of timm and of the releases of ViT, DeiT, DINOv2 and DINOv3.
TIMM_LAYERS = (
    KeyRule(TIMM + r'attn\.qkv\.', LAYER + 'attn.in_proj.'),
    KeyRule(TIMM + r'attn\.proj\.', LAYER + 'attn.proj.'),
    KeyRule(TIMM + r'norm([12])\.', LAYER + r'norm\2.'),
    KeyRule(TIMM + r'mlp\.(fc[12])\.', LAYER + r'ffn.\2.'),
    KeyRule(TIMM + r'(?:ls([12])\.gamma|gamma_([12]))$', _layer_scale),
)
NAMES = (
    KeyRule(BACKBONE + r'(cls_token|pos_embed)$', r'backbone.embed.\1'),
    KeyRule(BACKBONE + r'patch_embed\.proj(?:ection)?\.', 'backbone.embed.proj.'),
    *TIMM_LAYERS,
    KeyRule(r'norm\.', 'backbone.norm.'),
    KeyRule(DISTILLATION, None, reason='parts of the distillation'),
    KeyRule(r'head\.(?:fc\.|layers\.head\.|(?=weight$|bias$))', 'head.fc.'),
    KeyRule(MM_LAYER + r'attn\.(?:qkv\.|attn\.in_proj_)', LAYER + 'attn.in_proj.'),
    KeyRule(MM_LAYER + r'attn\.(?:attn\.out_)?proj\.', LAYER + 'attn.proj.'),
    KeyRule(MM_LAYER + r'(?:ln|norm)([12])\.', LAYER + r'norm\2.'),
    KeyRule(MM_LAYER + r'ffn\.layers\.0\.0\.', LAYER + 'ffn.fc1.'),
    KeyRule(MM_LAYER + r'ffn\.layers\.1\.', LAYER + 'ffn.fc2.'),
    KeyRule(MM_LAYER + r'(?:attn\.gamma(1)|ffn\.gamma(2))\.weight$', _layer_scale),
    KeyRule(BACKBONE + r'(?:ln|norm)1\.', 'backbone.norm.'),
    KeyRule(HF_EMBEDDING + r'cls_token$', 'backbone.embed.cls_token'),
    KeyRule(HF_EMBEDDING + r'position_embeddings$', 'backbone.embed.pos_embed'),
    KeyRule(HF_EMBEDDING + r'patch_embeddings\.projection\.', 'backbone.embed.proj.'),
    KeyRule(HF_LAYER + r'attention\.attention\.in_proj\.', LAYER + 'attn.in_proj.'),
    *(KeyRule(HF_LAYER + theirs, LAYER + ours) for theirs, ours in HF_LAYER_PARTS),
    KeyRule(HF_LAYER + r'layer_scale([12])\.lambda1$', LAYER + r'gamma\2'),
    KeyRule(HF + r'layernorm\.', 'backbone.norm.'),
    KeyRule(r'(?:cls_)?classifier\.', 'head.fc.'),
    KeyRule(HF + r'pooler\.', None, reason='weights of a pooler, which no classifier uses'),
    KeyRule(r'(?:.*\.)?mask_token$', None, reason='mask tokens of the pre-training'),
    *OPENMMLAB,
)


def convert_vit(state_dict: Mapping[str, Tensor]) -> Converted:
    """Rename weights of ViT, DeiT, DeiT III or DINOv2.

    The distillation token of DeiT and its position are omitted. A class token without a position
    (DeiT III) gets one of zeros. Position embeddings whose number fits a square image are taken as
    square, as in all releases.

    Raises:
        CheckpointError: see :func:`rename`; also for a class or distillation token without
            positions, as rotary ones have.
    """
    tensors, left_out = rename(fuse(state_dict, HF_QKV, 'attention.in_proj'), NAMES)
    positions = tensors.get(POSITIONS)
    if positions is None:
        if any(name.endswith('_token') for name in state_dict):
            raise CheckpointError('it has a class or distillation token, but no pos_embed')
    elif any(name.endswith(('dist_token', 'distillation_token')) for name in state_dict):
        positions = torch.cat([positions[:, :1], positions[:, 2:]], 1)
        tensors[POSITIONS] = positions
    return convert_positions(tensors), left_out


def convert_positions(tensors: Dict[str, Tensor]) -> Dict[str, Tensor]:
    """Return converted weights with a position of the class token and the grid of the positions."""
    positions = tensors.get(POSITIONS)
    if positions is None:
        return tensors
    side, cls_token = math.isqrt(positions.shape[1]), 'backbone.embed.cls_token' in tensors
    if cls_token and positions.shape[1] == side**2:
        positions = torch.cat([torch.zeros_like(positions[:, :1]), positions], 1)
    added = dict(tensors, **{POSITIONS: positions})
    if positions.shape[1] - side**2 in (0, 1):
        added['backbone.embed.pos_grid'] = torch.tensor((side, side))
    return added


CONVIT = (
    KeyRule(r'cls_token$', 'backbone.cls_token'),
    KeyRule(TIMM + r'attn\.in_proj\.', LAYER + 'attn.in_proj.'),
    KeyRule(TIMM + r'attn\.gating_param$', LAYER + 'attn.gates'),
    KeyRule(TIMM + r'attn\.pos_proj\.weight$', LAYER + 'attn.positions'),
    KeyRule(TIMM + r'attn\.pos_proj\.bias$', None, reason='position biases, equal for all keys'),
    KeyRule(r'.*rel_indices$', None, reason='constants of positions'),
    *NAMES,
)


def convert_convit(state_dict: Mapping[str, Tensor]) -> Converted:
    """Rename ConViT weights of the release or of timm.

    They are for ``ViT`` with ``GatedPositionalAttention`` in all layers but the last two, and
    ``cls_token_from`` the first of these.
    """
    tensors, left_out = rename(fuse(state_dict, ('attn.qk', 'attn.v'), 'attn.in_proj'), CONVIT)
    return convert_positions(tensors), left_out
