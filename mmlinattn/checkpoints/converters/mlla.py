"""Key mapping for released MLLA weights.

Released files are of two kinds:

- classifiers: ``norm`` and ``head`` after the last stage;
- complete models of MMDetection 2.x or MMSegmentation 0.x: prefix ``backbone.``, a norm for each
  output.
"""

from typing import Mapping

from torch import Tensor

from .key_mapping import BACKBONE, OPENMMLAB, Converted, KeyRule, record_attention, rename

STEM = BACKBONE + r'patch_embed\.(conv[123](?:\.\d)?)\.'
LAYER = BACKBONE + r'layers\.(\d+)\.'
BLOCK = LAYER + r'blocks\.(\d+)\.'
STAGE = r'backbone.stages.\1.\2.'
DOWNSAMPLE = LAYER + r'downsample\.conv\.(\d)\.'

RULES = (
    KeyRule(STEM + r'conv\.', r'backbone.stem.\1.conv.'),
    KeyRule(STEM + r'norm\.', r'backbone.stem.\1.bn.'),
    KeyRule(BLOCK + r'attn\.rope\.rotations$', None, reason='rotary tables of 224x224 images'),
    KeyRule(BLOCK + r'attn\.qk\.', STAGE + 'attn.in_proj.'),
    KeyRule(BLOCK + r'attn\.lepe\.', STAGE + 'attn.lepe.'),
    KeyRule(BLOCK + r'dwc\.', STAGE + 'dwconv.'),
    KeyRule(BLOCK + r'mlp\.(fc[12])\.', STAGE + r'ffn.\3.'),
    KeyRule(BLOCK + r'(cpe[12]|norm[12]|in_proj|act_proj|out_proj)\.', STAGE + r'\3.'),
    KeyRule(DOWNSAMPLE + r'conv\.', r'backbone.downsamples.\1.\2.conv.'),
    KeyRule(DOWNSAMPLE + r'norm\.', r'backbone.downsamples.\1.\2.bn.'),
    KeyRule(BACKBONE + r'norm([0-3])\.', r'backbone.out_norms.\1.'),
    KeyRule(r'norm\.', 'backbone.out_norms.3.'),
    KeyRule(r'head\.', 'head.fc.'),
    *OPENMMLAB,
)


def convert_mlla(state_dict: Mapping[str, Tensor]) -> Converted:
    """Rename MLLA weights and record their attention; errors of :func:`rename`."""
    tensors, left_out = rename(state_dict, RULES)
    record_attention(tensors, ['MLLAAttention'] * 4)
    return tensors, left_out
