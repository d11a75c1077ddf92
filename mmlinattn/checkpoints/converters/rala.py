"""Key mapping for released RALA / RAVLT and MALA / MAViT weights, whose names are the same.

Released files are of three kinds:

- classifiers: names without a prefix, ``proj`` / ``norm`` / ``head`` after the last stage;
- dense backbones: ``extra_norms`` instead of these;
- complete models of MMDetection 2.x or MMSegmentation 0.x: prefix ``backbone.``, necks and heads.
"""

import re
from typing import Mapping

from torch import Tensor

from ..errors import CheckpointError
from .key_mapping import BACKBONE, OPENMMLAB, Converted, KeyRule, linear, record_attention, rename

# Output channels of `proj` in the released classifiers.
CLASSIFIERS = {1024: 'rala', 2048: 'mala', 2560: 'mala'}
MODELS = dict(rala='RAVLT', mala='MAViT')

BLOCK = BACKBONE + r'layers\.(\d+)\.blocks\.(\d+)\.'
LAYER = BACKBONE + r'layers\.(\d+)\.'
STAGE = r'backbone.stages.\1.\2.'


def _stem(match: re.Match) -> str:
    # Each stem layer takes three indices of the Sequential: convolution, norm and GELU.
    layer, part = divmod(int(match[1]), 3)
    return f'backbone.stem.{layer}.{("conv", "bn")[part]}.'


RULES = (
    KeyRule(BACKBONE + r'patch_embed\.proj\.(0|1|3|4|6|7|9|10)\.', _stem),
    KeyRule(BLOCK + r'pos\.', STAGE + 'cpe.'),
    KeyRule(BLOCK + r'norm([12])\.norm\.', STAGE + r'norm\3.'),
    KeyRule(BLOCK + r'attn\.qkvo\.', STAGE + 'attn.in_proj.', linear),
    KeyRule(BLOCK + r'(attn\.proj|ffn\.fc[12])\.', STAGE + r'\3.', linear),
    KeyRule(BLOCK + r'(attn\.lepe|ffn\.dwconv)\.', STAGE + r'\3.'),
    KeyRule(BLOCK + r'gamma_([12])$', STAGE + r'gamma\3', Tensor.flatten),  # (1, C, 1, 1)
    KeyRule(LAYER + r'downsample\.reduction\.', r'backbone.downsamples.\1.conv.'),
    KeyRule(LAYER + r'downsample\.norm\.', r'backbone.downsamples.\1.bn.'),
    KeyRule(BACKBONE + r'extra_norms\.(\d+)\.norm\.', r'backbone.out_norms.\1.'),
    KeyRule(LAYER + r'RoPE\.angle$', None, reason='rotary angles, which the model computes'),
    KeyRule(r'proj\.', 'neck.conv.'),
    KeyRule(r'norm\.', 'neck.bn.'),
    KeyRule(r'head\.', 'head.fc.', linear),
    *OPENMMLAB,
)


def convert_rala(state_dict: Mapping[str, Tensor], source: str = 'rala') -> Converted:
    """Convert weights of RAVLT or MAViT and record their attention by stage.

    Raises:
        CheckpointError: the classifier is one of the other release; errors of :func:`rename`.
    """
    width = len(state_dict.get('proj.weight', ()))
    told = CLASSIFIERS.get(width, source)
    if told != source:
        raise CheckpointError(
            f'the source is {source!r} ({MODELS[source]}), but proj.weight has {width} rows as in '
            f'the classifiers of {MODELS[told]}: use source {told!r}'
        )
    tensors, left_out = rename(state_dict, RULES)
    record_attention(tensors, [source.upper()] * 2 + ['SoftmaxAttention'] * 2)
    return tensors, left_out
