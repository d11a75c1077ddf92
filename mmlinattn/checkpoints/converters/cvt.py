"""Key mapping for CvT weights from the release or from transformers."""

from typing import Mapping

from torch import Tensor

from .key_mapping import BACKBONE, OPENMMLAB, Converted, KeyMap, Rule, fuse

STAGE = BACKBONE + r'stage(\d)\.'
BLOCK = STAGE + r'blocks\.(\d+)\.'
OURS = r'backbone.stages.\1.\2.'
TRANSFORMERS = r'(?:cvt\.)?encoder\.stages\.(\d)\.'
TRANSFORMERS_EMBEDDING = TRANSFORMERS + r'embedding\.convolution_embeddings\.'
TRANSFORMERS_BLOCK = TRANSFORMERS + r'layers\.(\d+)\.'
TRANSFORMERS_CONVOLUTION = (
    TRANSFORMERS_BLOCK
    + r'attention\.attention\.convolution_projection_([qkv])\w*\.convolution_projection\.'
)

NAMES = KeyMap(
    [
        Rule(STAGE + r'patch_embed\.', r'backbone.patch_embeds.\1.'),
        Rule(STAGE + r'cls_token$', 'backbone.cls_token'),
        Rule(BLOCK + r'norm([12])\.', OURS + r'norm\3.'),
        Rule(BLOCK + r'attn\.conv_proj_([qkv])\.', OURS + r'attn.conv_\3.'),
        Rule(BLOCK + r'attn\.(in_proj|proj)\.', OURS + r'attn.\3.'),
        Rule(BLOCK + r'mlp\.', OURS + 'ffn.'),
        Rule(BACKBONE + r'norm\.', 'backbone.out_norms.2.'),
        Rule(r'head\.(?=weight$|bias$)', 'head.fc.'),
        Rule(TRANSFORMERS_EMBEDDING + r'projection\.', r'backbone.patch_embeds.\1.proj.'),
        Rule(TRANSFORMERS_EMBEDDING + r'normalization\.', r'backbone.patch_embeds.\1.norm.'),
        Rule(TRANSFORMERS + r'cls_token$', 'backbone.cls_token'),
        Rule(TRANSFORMERS_CONVOLUTION + r'convolution\.', OURS + r'attn.conv_\3.conv.'),
        Rule(TRANSFORMERS_CONVOLUTION + r'normalization\.', OURS + r'attn.conv_\3.bn.'),
        Rule(TRANSFORMERS_BLOCK + r'attention\.attention\.in_proj\.', OURS + 'attn.in_proj.'),
        Rule(TRANSFORMERS_BLOCK + r'attention\.output\.dense\.', OURS + 'attn.proj.'),
        Rule(TRANSFORMERS_BLOCK + r'layernorm_before\.', OURS + 'norm1.'),
        Rule(TRANSFORMERS_BLOCK + r'layernorm_after\.', OURS + 'norm2.'),
        Rule(TRANSFORMERS_BLOCK + r'intermediate\.dense\.', OURS + 'ffn.fc1.'),
        Rule(TRANSFORMERS_BLOCK + r'output\.dense\.', OURS + 'ffn.fc2.'),
        Rule(r'layernorm\.', 'backbone.out_norms.2.'),
        Rule(r'classifier\.', 'head.fc.'),
        *OPENMMLAB,
    ]
)
PROJECTIONS = tuple(f'attn.proj_{name}' for name in 'qkv')
TRANSFORMERS_PROJECTIONS = tuple(
    f'attention.projection_{name}' for name in ('query', 'key', 'value')
)


def convert_cvt(state_dict: Mapping[str, Tensor]) -> Converted:
    """Rename CvT weights and fuse the projections of queries, keys and values."""
    fused = fuse(state_dict, PROJECTIONS, 'attn.in_proj')
    return NAMES(fuse(fused, TRANSFORMERS_PROJECTIONS, 'attention.in_proj'))
