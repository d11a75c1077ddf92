"""Key mapping for released weights of H-ViT³ and ViT³.

Released files are of two kinds:

- classifiers: ``norm`` and ``head`` after the last stage; training files have ``model`` outside;
- complete models of MMDetection 3.x or MMSegmentation 1.x: prefix ``backbone.``, a norm for each
  output.
"""

from typing import Mapping

import torch
from torch import Tensor

from ..errors import CheckpointError
from .key_mapping import BACKBONE, OPENMMLAB, Converted, KeyRule, record_attention, rename

STEM = BACKBONE + r'patch_embed\.conv\.'
# Of the five convolutions, which the stem of MLLA groups.
CONVS = ('conv1', 'conv2.0', 'conv2.1', 'conv3.0', 'conv3.1')
LAYER = BACKBONE + r'layers\.(\d+)\.'
# H-ViT³ has layers of blocks, ViT³ blocks alone.
BLOCKS = (
    (LAYER + r'blocks\.(\d+)\.', r'backbone.stages.\1.\2.'),
    (BACKBONE + r'blocks\.(\d+)()\.', r'backbone.layers.\1.'),
)
DOWNSAMPLE = LAYER + r'downsample\.conv\.(\d)\.'

RULES = (
    *(
        KeyRule(STEM + rf'{i}\.{theirs}\.', f'backbone.stem.{name}.{ours}.')
        for i, name in enumerate(CONVS)
        for theirs, ours in (('conv', 'conv'), ('norm', 'bn'))
    ),
    KeyRule(
        LAYER + r'blocks\.\d+\.(?:attn\.)?rope\.rotations$', None,
        reason='rotary tables of 224x224 images',
    ),
    *(
        rule
        for block, ours in BLOCKS
        for rule in (
            KeyRule(block + r'attn\.qkv\.', ours + 'attn.in_proj.'),
            KeyRule(block + r'attn\.proj\.', ours + 'attn.proj.'),
            KeyRule(block + r'attn\.w1$', ours + 'attn.linear1', lambda w: w[0]),
            KeyRule(block + r'attn\.w2$', ours + 'attn.linear2', lambda w: w[0]),
            KeyRule(block + r'attn\.w3$', ours + 'attn.conv', lambda w: w.flatten(1)),
            KeyRule(block + r'mlp\.dwc\.', ours + 'ffn.dwconv.'),
            KeyRule(block + r'mlp\.(fc[12])\.', ours + r'ffn.\3.'),
            KeyRule(block + r'(cpe|norm[12])\.', ours + r'\3.'),
        )
    ),
    KeyRule(BACKBONE + r'patch_embed\.proj\.', 'backbone.embed.proj.'),
    KeyRule(DOWNSAMPLE + r'conv\.', r'backbone.downsamples.\1.\2.conv.'),
    KeyRule(DOWNSAMPLE + r'norm\.', r'backbone.downsamples.\1.\2.bn.'),
    KeyRule(BACKBONE + r'norm([0-3])\.', r'backbone.out_norms.\1.'),
    KeyRule(r'norm\.', 'neck.bn.'),
    KeyRule(r'head\.', 'head.fc.'),
    *OPENMMLAB,
)  # fmt: skip


def convert_vittt(state_dict: Mapping[str, Tensor]) -> Converted:
    """Rename weights of H-ViT³ and ViT³ and record their attention; errors of :func:`rename`.

    Raises:
        CheckpointError: a projection does not fit the convolution of its layer, or that is missing.
    """
    tensors, left_out = rename(state_dict, RULES)
    for name, weight in tensors.items():
        before, found, _ = name.rpartition('.in_proj.')
        if found:
            dim = len(tensors.get(f'{before}.conv', ()))
            if not 0 < 3 * dim < len(weight) or len(weight) % 3:
                raise CheckpointError(
                    f'{name} of {len(weight)} rows does not fit the w3 of its layer, of {dim}: the '
                    'file is truncated or damaged: download it again'
                )
            tensors[name] = _heads_together(weight, dim)
    if any(name.startswith('backbone.layers.') for name in tensors):  # ViT³ has no batch norm
        tensors = {name.replace('neck.bn.', 'backbone.norm.'): t for name, t in tensors.items()}
    record_attention(tensors, ['TTTAttention'] * 4)
    return tensors, left_out


def _heads_together(weight: Tensor, dim: int) -> Tensor:
    """Put the head of the convolution behind the other heads of q, of k and of v.

    The release has q, k and v of C channels each, then those of the convolution, ``dim`` each.
    """
    q, k, v, *of_conv = weight.split([weight.shape[0] // 3 - dim] * 3 + [dim] * 3)
    return torch.cat([part for pair in zip((q, k, v), of_conv) for part in pair])
