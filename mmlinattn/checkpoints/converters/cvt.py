"""Key mapping for CvT weights from the release or from transformers."""

from typing import Mapping

from torch import Tensor

from .key_mapping import BACKBONE, HF_LAYER_PARTS, OPENMMLAB, Converted, KeyRule, fuse, rename

STAGE = BACKBONE + r'stage(\d)\.'
BLOCK = STAGE + r'blocks\.(\d+)\.'
OURS = r'backbone.stages.\1.\2.'
HF = r'(?:cvt\.)?encoder\.stages\.(\d)\.'
HF_EMBEDDING = HF + r'embedding\.convolution_embeddings\.'
HF_BLOCK = HF + r'layers\.(\d+)\.'
HF_CONVOLUTION = (
    HF_BLOCK + r'attention\.attention\.convolution_projection_([qkv])\w*\.convolution_projection\.'
)

NAMES = (
    KeyRule(STAGE + r'patch_embed\.', r'backbone.patch_embeds.\1.'),
    KeyRule(STAGE + r'cls_token$', 'backbone.cls_token'),
    KeyRule(BLOCK + r'norm([12])\.', OURS + r'norm\3.'),
    KeyRule(BLOCK + r'attn\.conv_proj_([qkv])\.', OURS + r'attn.conv_\3.'),
    KeyRule(BLOCK + r'attn\.(in_proj|proj)\.', OURS + r'attn.\3.'),
    KeyRule(BLOCK + r'mlp\.', OURS + 'ffn.'),
    KeyRule(BACKBONE + r'norm\.', 'backbone.out_norms.2.'),
    KeyRule(r'head\.(?=weight$|bias$)', 'head.fc.'),
    KeyRule(HF_EMBEDDING + r'projection\.', r'backbone.patch_embeds.\1.proj.'),
    KeyRule(HF_EMBEDDING + r'normalization\.', r'backbone.patch_embeds.\1.norm.'),
    KeyRule(HF + r'cls_token$', 'backbone.cls_token'),
    KeyRule(HF_CONVOLUTION + r'convolution\.', OURS + r'attn.conv_\3.conv.'),
    KeyRule(HF_CONVOLUTION + r'normalization\.', OURS + r'attn.conv_\3.bn.'),
    KeyRule(HF_BLOCK + r'attention\.attention\.in_proj\.', OURS + 'attn.in_proj.'),
    *(KeyRule(HF_BLOCK + theirs, OURS + ours) for theirs, ours in HF_LAYER_PARTS),
    KeyRule(r'layernorm\.', 'backbone.out_norms.2.'),
    KeyRule(r'classifier\.', 'head.fc.'),
    *OPENMMLAB,
)


def convert_cvt(state_dict: Mapping[str, Tensor]) -> Converted:
    """Rename CvT weights and fuse the projections of queries, keys and values."""
    fused = fuse(state_dict, [f'attn.proj_{name}' for name in 'qkv'], 'attn.in_proj')
    parts = [f'attention.projection_{name}' for name in ('query', 'key', 'value')]
    return rename(fuse(fused, parts, 'attention.in_proj'), NAMES)
