"""Key mapping for released RALA / RAVLT and MALA / MAViT weights, whose names are the same.

Released files are of three kinds:

- classifiers: names without a prefix, ``proj`` / ``norm`` / ``head`` after the last stage;
- dense backbones: ``extra_norms`` instead of these;
- complete models of MMDetection 2.x or MMSegmentation 0.x: prefix ``backbone.``, necks and heads.
"""

from typing import Mapping

from torch import Tensor

from ..errors import CheckpointError
from .key_mapping import BACKBONE, OPENMMLAB, Converted, KeyMap, KeyRule, linear, record_attention

# Output channels of `proj` in the released classifiers.
CLASSIFIERS = {1024: 'rala', 2048: 'mala', 2560: 'mala'}
MODELS = dict(rala='RAVLT', mala='MAViT')


BLOCK = BACKBONE + r'layers\.(\d+)\.blocks\.(\d+)\.'
LAYER = BACKBONE + r'layers\.(\d+)\.'
STAGE = r'backbone.stages.\1.\2.'

RULES = KeyMap(
    [
        # Each stem layer takes three indices of the Sequential: convolution, norm and GELU.
        KeyRule(
            BACKBONE + r'patch_embed\.proj\.(0|3|6|9)\.',
            lambda match: f'backbone.stem.{int(match[1]) // 3}.conv.',
        ),
        KeyRule(
            BACKBONE + r'patch_embed\.proj\.(1|4|7|10)\.',
            lambda match: f'backbone.stem.{int(match[1]) // 3}.bn.',
        ),
        KeyRule(BLOCK + r'pos\.', STAGE + 'cpe.'),
        KeyRule(BLOCK + r'norm([12])\.norm\.', STAGE + r'norm\3.'),
        KeyRule(BLOCK + r'attn\.qkvo\.weight$', STAGE + 'attn.in_proj.weight', linear),
        KeyRule(BLOCK + r'attn\.qkvo\.', STAGE + 'attn.in_proj.'),
        KeyRule(BLOCK + r'attn\.proj\.weight$', STAGE + 'attn.proj.weight', linear),
        KeyRule(BLOCK + r'attn\.(lepe|proj)\.', STAGE + r'attn.\3.'),
        KeyRule(BLOCK + r'ffn\.(fc1|fc2)\.weight$', STAGE + r'ffn.\3.weight', linear),
        KeyRule(BLOCK + r'ffn\.(fc1|fc2|dwconv)\.', STAGE + r'ffn.\3.'),
        KeyRule(BLOCK + r'gamma_([12])$', STAGE + r'gamma\3', Tensor.flatten),  # (1, C, 1, 1)
        KeyRule(LAYER + r'downsample\.reduction\.', r'backbone.downsamples.\1.conv.'),
        KeyRule(LAYER + r'downsample\.norm\.', r'backbone.downsamples.\1.bn.'),
        KeyRule(BACKBONE + r'extra_norms\.(\d+)\.norm\.', r'backbone.out_norms.\1.'),
        KeyRule(LAYER + r'RoPE\.angle$', None, reason='rotary angles, which the model computes'),
        KeyRule(r'proj\.', 'neck.conv.'),
        KeyRule(r'norm\.', 'neck.bn.'),
        KeyRule(r'head\.weight$', 'head.fc.weight', linear),
        KeyRule(r'head\.', 'head.fc.'),
        *OPENMMLAB,
    ]
)


def release_of(state_dict: Mapping[str, Tensor]) -> str:
    """Return ``'rala'`` or ``'mala'``, by the width of the classifier's ``proj``.

    Raises:
        CheckpointError: the file has no released classifier, so nothing tells the two apart.
    """
    width = len(state_dict['proj.weight']) if 'proj.weight' in state_dict else 0
    if width not in CLASSIFIERS:
        raise CheckpointError(
            'RAVLT (RALA) and MAViT (MALA) have weights of the same names and shapes: say which '
            "release this is, 'rala' or 'mala' (--source)"
        )
    return CLASSIFIERS[width]


def convert_rala(state_dict: Mapping[str, Tensor], source: str = 'rala') -> Converted:
    """Convert weights of RAVLT or MAViT and record their attention by stage.

    Raises:
        CheckpointError: the classifier is one of the other release; errors of :class:`KeyMap`.
    """
    width = len(state_dict['proj.weight']) if 'proj.weight' in state_dict else 0
    told = CLASSIFIERS.get(width, source)
    if told != source:
        raise CheckpointError(
            f'the source is {source!r} ({MODELS[source]}), but proj.weight has {width} rows as in '
            f'the classifiers of {MODELS[told]}: use source {told!r}'
        )
    tensors, left_out = RULES(state_dict)
    record_attention(tensors, [source.upper()] * 2 + ['SoftmaxAttention'] * 2)
    return tensors, left_out
