"""Key mapping for TimeSformer weights as released, from MMAction2 or from transformers."""

from typing import Mapping

from torch import Tensor

from .key_mapping import HF_LAYER_PARTS, Converted, KeyRule, rename

LAYER = r'backbone.layers.\1.'
STEP = LAYER + 'steps.0.'

RELEASED_BLOCK = r'(?:model\.)?blocks\.(\d+)\.'
RELEASED = (
    KeyRule(r'(?:model\.)?(cls_token|pos_embed|time_embed)$', r'backbone.embed.\1'),
    KeyRule(r'(?:model\.)?patch_embed\.proj\.', 'backbone.embed.proj.'),
    KeyRule(RELEASED_BLOCK + r'norm([12])\.', LAYER + r'norm\2.'),
    KeyRule(RELEASED_BLOCK + r'attn\.qkv\.', LAYER + 'attn.in_proj.'),
    KeyRule(RELEASED_BLOCK + r'attn\.proj\.', LAYER + 'attn.proj.'),
    KeyRule(RELEASED_BLOCK + r'temporal_norm1\.', STEP + 'norm.'),
    KeyRule(RELEASED_BLOCK + r'temporal_attn\.qkv\.', STEP + 'attn.in_proj.'),
    KeyRule(RELEASED_BLOCK + r'temporal_attn\.proj\.', STEP + 'attn.proj.'),
    KeyRule(RELEASED_BLOCK + r'temporal_fc\.', STEP + 'fc.'),
    KeyRule(RELEASED_BLOCK + r'mlp\.(fc[12])\.', LAYER + r'ffn.\2.'),
    KeyRule(r'(?:model\.)?norm\.', 'backbone.norm.'),
    KeyRule(r'(?:model\.)?head\.', 'head.fc.'),
)

# Divided attention has two attentions, the temporal one first; the others have one and two norms.
MMACTION_LAYER = r'(?:backbone\.)?transformer_layers\.layers\.(\d+)\.'
MMACTION = (
    KeyRule(r'backbone\.(cls_token|pos_embed|time_embed)$', r'backbone.embed.\1'),
    KeyRule(r'(?:backbone\.)?patch_embed\.projection\.', 'backbone.embed.proj.'),
    KeyRule(MMACTION_LAYER + r'attentions\.0\.norm\.', STEP + 'norm.'),
    KeyRule(MMACTION_LAYER + r'attentions\.0\.temporal_fc\.', STEP + 'fc.'),
    KeyRule(MMACTION_LAYER + r'(?:attentions\.1\.norm|norms\.0)\.', LAYER + 'norm1.'),
    KeyRule(MMACTION_LAYER + r'attentions\.1\.attn\.in_proj_', LAYER + 'attn.in_proj.'),
    KeyRule(MMACTION_LAYER + r'attentions\.1\.attn\.out_proj\.', LAYER + 'attn.proj.'),
    KeyRule(MMACTION_LAYER + r'(?:ffns\.0\.norm|norms\.1)\.', LAYER + 'norm2.'),
    KeyRule(MMACTION_LAYER + r'ffns\.0\.layers\.0\.0\.', LAYER + 'ffn.fc1.'),
    KeyRule(MMACTION_LAYER + r'ffns\.0\.layers\.1\.', LAYER + 'ffn.fc2.'),
    KeyRule(r'backbone\.norm\.', 'backbone.norm.'),
    KeyRule(r'cls_head\.fc_cls\.', 'head.fc.'),
)

HF = r'(?:timesformer\.)?'
HF_LAYER = HF + r'encoder\.layer\.(\d+)\.'
TRANSFORMERS = (
    KeyRule(HF + r'embeddings\.cls_token$', 'backbone.embed.cls_token'),
    KeyRule(HF + r'embeddings\.position_embeddings$', 'backbone.embed.pos_embed'),
    KeyRule(HF + r'embeddings\.time_embeddings$', 'backbone.embed.time_embed'),
    KeyRule(HF + r'embeddings\.patch_embeddings\.projection\.', 'backbone.embed.proj.'),
    KeyRule(HF_LAYER + r'attention\.attention\.qkv\.', LAYER + 'attn.in_proj.'),
    KeyRule(HF_LAYER + r'temporal_attention\.attention\.qkv\.', STEP + 'attn.in_proj.'),
    KeyRule(HF_LAYER + r'temporal_attention\.output\.dense\.', STEP + 'attn.proj.'),
    KeyRule(HF_LAYER + r'temporal_layernorm\.', STEP + 'norm.'),
    KeyRule(HF_LAYER + r'temporal_dense\.', STEP + 'fc.'),
    *(KeyRule(HF_LAYER + theirs, LAYER + ours) for theirs, ours in HF_LAYER_PARTS),
    KeyRule(HF + r'layernorm\.', 'backbone.norm.'),
    KeyRule(r'classifier\.', 'head.fc.'),
)


def convert_timesformer(state_dict: Mapping[str, Tensor]) -> Converted:
    """Rename TimeSformer weights of facebookresearch, MMAction2 or transformers."""
    divided = any('attentions.1.' in name for name in state_dict)
    ours, theirs = STEP if divided else LAYER, MMACTION_LAYER + r'attentions\.0\.attn\.'
    first = (
        KeyRule(theirs + 'in_proj_', ours + 'attn.in_proj.'),
        KeyRule(theirs + r'out_proj\.', ours + 'attn.proj.'),
    )
    return rename(state_dict, [*RELEASED, *first, *MMACTION, *TRANSFORMERS])
