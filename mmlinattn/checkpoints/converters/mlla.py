"""Key mapping for released MLLA weights.

Released files are of two kinds:

- classifiers: ``norm`` and ``head`` after the last stage;
- complete models of MMDetection 2.x or MMSegmentation 0.x: prefix ``backbone.``, a norm for each
  output.
"""

from typing import Mapping

from torch import Tensor

from .key_mapping import BACKBONE, OPENMMLAB, Converted, KeyMap, Rule, record_attention

STEM = BACKBONE + r'patch_embed\.(conv[123](?:\.\d)?)\.'
LAYER = BACKBONE + r'layers\.(\d+)\.'
BLOCK = LAYER + r'blocks\.(\d+)\.'
STAGE = r'backbone.stages.\1.\2.'
DOWNSAMPLE = LAYER + r'downsample\.conv\.(\d)\.'

RULES = KeyMap(
    [
        Rule(STEM + r'conv\.', r'backbone.stem.\1.conv.'),
        Rule(STEM + r'norm\.', r'backbone.stem.\1.bn.'),
        Rule(BLOCK + r'attn\.rope\.rotations$', None, reason='rotary tables of 224x224 images'),
        Rule(BLOCK + r'attn\.qk\.', STAGE + 'attn.in_proj.'),
        Rule(BLOCK + r'attn\.lepe\.', STAGE + 'attn.lepe.'),
        Rule(BLOCK + r'dwc\.', STAGE + 'dwconv.'),
        Rule(BLOCK + r'mlp\.(fc[12])\.', STAGE + r'ffn.\3.'),
        Rule(BLOCK + r'(cpe[12]|norm[12]|in_proj|act_proj|out_proj)\.', STAGE + r'\3.'),
        Rule(DOWNSAMPLE + r'conv\.', r'backbone.downsamples.\1.\2.conv.'),
        Rule(DOWNSAMPLE + r'norm\.', r'backbone.downsamples.\1.\2.bn.'),
        Rule(BACKBONE + r'norm([0-3])\.', r'backbone.out_norms.\1.'),
        Rule(r'norm\.', 'backbone.out_norms.3.'),
        Rule(r'head\.', 'head.fc.'),
        *OPENMMLAB,
    ]
)


def convert_mlla(state_dict: Mapping[str, Tensor]) -> Converted:
    """Rename MLLA weights and record their attention; errors of :class:`KeyMap`."""
    tensors, left_out = RULES(state_dict)
    record_attention(tensors, ['MLLAAttention'] * 4)
    return tensors, left_out
