"""Key mapping for the vision towers of CLIP and SigLIP."""

from functools import partial
from typing import Mapping

import torch
from torch import Tensor

from ..errors import CheckpointError
from .key_mapping import Converted, KeyRule, fuse, rename
from .vit import LAYER, NAMES, POSITIONS, convert_positions

# The release of CLIP, and OpenCLIP.
RELEASED = r'(?:module\.)?visual\.'
RELEASED_LAYER = RELEASED + r'transformer\.resblocks\.(\d+)\.'
# transformers, whole models and towers alone.
HF = r'vision_model\.'
HF_LAYER = HF + r'encoder\.layers\.(\d+)\.'
TEXT = (
    r'text_model\.|text\.|token_embedding\.|positional_embedding$|transformer\.resblocks\.'
    r'|ln_final\.|text_projection(?:$|\.)|logit_scale$|logit_bias$'
    r'|visual_projection\.|' + RELEASED + r'proj$|visual\.head\.'
)
POOL = r'attn_pool\.|' + HF + r'head\.'
TRUNK = KeyRule(r'(?:visual\.trunk\.)?', '')  # before timm's names within OpenCLIP

TOKEN = partial(torch.reshape, shape=(1, 1, -1))
TABLE = partial(torch.unsqueeze, dim=0)

CLIP = (
    KeyRule(POOL, None, reason='weights of a pooling head, which no backbone has'),
    KeyRule(RELEASED + r'class_embedding$', 'backbone.embed.cls_token', TOKEN),
    KeyRule(RELEASED + r'positional_embedding$', POSITIONS, TABLE),
    KeyRule(RELEASED + r'conv1\.', 'backbone.embed.proj.'),
    KeyRule(RELEASED + r'ln_pre\.', 'backbone.embed.norm.'),
    KeyRule(RELEASED_LAYER + r'ln_([12])\.', LAYER + r'norm\2.'),
    KeyRule(RELEASED_LAYER + r'attn\.in_proj_', LAYER + 'attn.in_proj.'),
    KeyRule(RELEASED_LAYER + r'attn\.out_proj\.', LAYER + 'attn.proj.'),
    KeyRule(RELEASED_LAYER + r'mlp\.c_fc\.', LAYER + 'ffn.fc1.'),
    KeyRule(RELEASED_LAYER + r'mlp\.c_proj\.', LAYER + 'ffn.fc2.'),
    KeyRule(RELEASED + r'ln_post\.', 'backbone.norm.'),
    KeyRule(HF + r'embeddings\.class_embedding$', 'backbone.embed.cls_token', TOKEN),
    KeyRule(HF + r'embeddings\.position_embedding\.weight$', POSITIONS, TABLE),
    KeyRule(HF + r'embeddings\.position_ids$', None, reason='constants of positions'),
    KeyRule(HF + r'embeddings\.patch_embedding\.', 'backbone.embed.proj.'),
    KeyRule(HF + r'pre_layrnorm\.', 'backbone.embed.norm.'),
    KeyRule(HF_LAYER + r'layer_norm([12])\.', LAYER + r'norm\2.'),
    KeyRule(HF_LAYER + r'self_attn\.in_proj\.', LAYER + 'attn.in_proj.'),
    KeyRule(HF_LAYER + r'self_attn\.out_proj\.', LAYER + 'attn.proj.'),
    KeyRule(HF_LAYER + r'mlp\.(fc[12])\.', LAYER + r'ffn.\2.'),
    KeyRule(HF + r'post_layernorm\.', 'backbone.norm.'),
    KeyRule(TEXT, None, reason='weights of the text tower and of the projections'),
    KeyRule(r'norm_pre\.', 'backbone.embed.norm.'),
    *NAMES,
)


def convert_clip(state_dict: Mapping[str, Tensor]) -> Converted:
    """Rename the vision tower of CLIP or SigLIP.

    Text tower, projections and the attention pool of SigLIP are omitted.

    Raises:
        CheckpointError: see :func:`rename`; also for a name with and without ``visual.trunk.``,
            and for a Perception Encoder, whose rotary position has no weights.
    """
    parts = tuple(f'self_attn.{name}_proj' for name in 'qkv')
    named, _ = rename(state_dict, [TRUNK])
    tensors, left_out = rename(fuse(named, parts, 'self_attn.in_proj'), CLIP)
    has_pool = any(name.startswith('attn_pool.') for name in named)
    has_no_norm = 'pos_embed' in named and 'norm.weight' not in named
    if 'norm_pre.weight' in named and (has_pool or has_no_norm):
        raise CheckpointError(
            'norm_pre with attn_pool, or without a last norm, is of a Perception Encoder, whose '
            'rotary position is not supported'
        )
    return convert_positions(tensors), left_out
