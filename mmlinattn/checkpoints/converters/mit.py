"""Key mapping for MiT weights from the SegFormer release, MMSegmentation or transformers.

The release has classifiers (``patch_embed1.proj.weight``, ..., ``head``) and segmentors
(``decode_head.linear_c1.proj.weight``, ...). MMSegmentation has their converted backbones
(``layers.0.0.projection.weight``, ...) and segmentors with its own head. transformers has the
release under other names.
"""

from typing import Mapping

import torch
from torch import Tensor

from .key_mapping import (
    BACKBONE,
    HF_SELF_QKV,
    OPENMMLAB,
    Converted,
    KeyRule,
    from_one,
    fuse,
    linear,
    rename,
)

BLOCK = BACKBONE + r'block(\d)\.(\d+)\.'
RELEASED = (
    KeyRule(BACKBONE + r'patch_embed(\d)\.', from_one('backbone.patch_embeds.{}.')),
    KeyRule(
        BLOCK + r'(norm[12]|attn\.(?:in_proj|proj|sr|norm))\.',
        from_one('backbone.stages.{}.{}.{}.'),
    ),
    KeyRule(BLOCK + r'mlp\.(fc[12])\.', from_one('backbone.stages.{}.{}.ffn.{}.')),
    KeyRule(BLOCK + r'mlp\.dwconv\.dwconv\.', from_one('backbone.stages.{}.{}.ffn.dwconv.')),
    KeyRule(BACKBONE + r'norm(\d)\.', from_one('backbone.norms.{}.')),
    KeyRule(r'head\.', 'head.fc.'),
)

MMSEG_BLOCK = BACKBONE + r'layers\.(\d)\.1\.(\d+)\.'
STAGE = r'backbone.stages.\1.\2.'
MMSEG = (
    KeyRule(BACKBONE + r'layers\.(\d)\.0\.projection\.', r'backbone.patch_embeds.\1.proj.'),
    KeyRule(BACKBONE + r'layers\.(\d)\.0\.norm\.', r'backbone.patch_embeds.\1.norm.'),
    KeyRule(BACKBONE + r'layers\.(\d)\.2\.', r'backbone.norms.\1.'),
    KeyRule(MMSEG_BLOCK + r'attn\.attn\.in_proj_', STAGE + 'attn.in_proj.'),
    KeyRule(MMSEG_BLOCK + r'attn\.attn\.out_proj\.', STAGE + 'attn.proj.'),
    KeyRule(MMSEG_BLOCK + r'(norm[12]|attn\.(?:sr|norm))\.', STAGE + r'\3.'),
    KeyRule(MMSEG_BLOCK + r'ffn\.layers\.0\.', STAGE + 'ffn.fc1.', linear),
    KeyRule(MMSEG_BLOCK + r'ffn\.layers\.1\.', STAGE + 'ffn.dwconv.'),
    KeyRule(MMSEG_BLOCK + r'ffn\.layers\.4\.', STAGE + 'ffn.fc2.', linear),
)


def _pointwise(weight: Tensor) -> Tensor:
    """Return a linear weight (out, in) as that of a 1x1 convolution; a bias stays."""
    return weight[..., None, None] if weight.dim() > 1 else weight


def _finest_first(weight: Tensor) -> Tensor:
    """Reverse the order of the four levels, which the release concatenates coarsest first."""
    return torch.cat(weight.chunk(4, dim=1)[::-1], dim=1)


# Into AllMLPHead. The release's own `conv_seg` comes from its base class and is never used.
RELEASED_HEAD = (
    KeyRule(r'decode_head\.linear_c(\d)\.proj\.', from_one('decode_head.convs.{}.'), _pointwise),
    KeyRule(r'decode_head\.linear_fuse\.conv\.weight$',
         'decode_head.fusion_conv.conv.weight', _finest_first),
    KeyRule(r'decode_head\.linear_fuse\.bn\.', 'decode_head.fusion_conv.bn.'),
    KeyRule(r'decode_head\.linear_pred\.', 'decode_head.conv_seg.'),
    KeyRule(r'decode_head\.conv_seg\.', None, reason='weights of a classifier that is never used'),
)  # fmt: skip
HF = r'(?:segformer\.)?encoder\.'
HF_BLOCK = HF + r'block\.(\d)\.(\d+)\.'
OF_HF = (
    KeyRule(HF + r'patch_embeddings\.(\d)\.proj\.', r'backbone.patch_embeds.\1.proj.'),
    KeyRule(HF + r'patch_embeddings\.(\d)\.layer_norm\.', r'backbone.patch_embeds.\1.norm.'),
    KeyRule(HF_BLOCK + r'layer_norm_([12])\.', STAGE + r'norm\3.'),
    KeyRule(HF_BLOCK + r'attention\.self\.(in_proj|sr)\.', STAGE + r'attn.\3.'),
    KeyRule(HF_BLOCK + r'attention\.self\.layer_norm\.', STAGE + 'attn.norm.'),
    KeyRule(HF_BLOCK + r'attention\.output\.dense\.', STAGE + 'attn.proj.'),
    KeyRule(HF_BLOCK + r'mlp\.dense([12])\.', STAGE + r'ffn.fc\3.'),
    KeyRule(HF_BLOCK + r'mlp\.dwconv\.dwconv\.', STAGE + 'ffn.dwconv.'),
    KeyRule(HF + r'layer_norm\.(\d)\.', r'backbone.norms.\1.'),
    KeyRule(r'classifier\.', 'head.fc.'),
    KeyRule(r'decode_head\.linear_c\.(\d)\.proj\.', r'decode_head.convs.\1.', _pointwise),
    KeyRule(
        r'decode_head\.linear_fuse\.weight$', 'decode_head.fusion_conv.conv.weight', _finest_first
    ),
    KeyRule(r'decode_head\.batch_norm\.', 'decode_head.fusion_conv.bn.'),
    KeyRule(r'decode_head\.classifier\.', 'decode_head.conv_seg.'),
)


def convert_mit(state_dict: Mapping[str, Tensor]) -> Converted:
    """Rename MiT weights and fuse the released projections of queries, keys and values.

    The head of a released segmentor, or of one of transformers, becomes that of ``AllMLPHead``; the
    head of a segmentor from MMSegmentation keeps its names, those of its ``SegformerHead``.
    """
    released = any(name.startswith('decode_head.linear_pred.') for name in state_dict)
    others = (*MMSEG, *OF_HF, *OPENMMLAB)
    rules = (*RELEASED_HEAD, *RELEASED) if released else (*RELEASED, *others)
    fused = fuse(state_dict, ('attn.q', 'attn.kv'), 'attn.in_proj')
    return rename(fuse(fused, HF_SELF_QKV, 'self.in_proj'), rules)
