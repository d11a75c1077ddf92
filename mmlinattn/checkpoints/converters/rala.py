"""Key mapping for released RALA / RAVLT weights.

A released file is one of: a classifier (names without a prefix, ``proj`` / ``norm`` / ``head``
after the last stage), a dense backbone (``extra_norms`` instead of these), or a complete
MMDetection 2.x / MMSegmentation 0.x model (prefix ``backbone.``, necks and heads).
"""

from torch import Tensor

from .key_mapping import OPENMMLAB, KeyMap, Rule, linear


def _vector(scale: Tensor) -> Tensor:
    """Return a layer scale (1, C, 1, 1) as (C,)."""
    return scale.flatten()


BACKBONE = r'(?:backbone\.)?'
BLOCK = BACKBONE + r'layers\.(\d+)\.blocks\.(\d+)\.'
LAYER = BACKBONE + r'layers\.(\d+)\.'
STAGE = r'backbone.stages.\1.\2.'

RALA = KeyMap(
    [
        # Each stem layer takes three indices of the Sequential: convolution, norm and GELU.
        Rule(
            BACKBONE + r'patch_embed\.proj\.(0|3|6|9)\.',
            lambda match: f'backbone.stem.{int(match[1]) // 3}.conv.',
        ),
        Rule(
            BACKBONE + r'patch_embed\.proj\.(1|4|7|10)\.',
            lambda match: f'backbone.stem.{int(match[1]) // 3}.bn.',
        ),
        Rule(BLOCK + r'pos\.', STAGE + 'cpe.'),
        Rule(BLOCK + r'norm([12])\.norm\.', STAGE + r'norm\3.'),
        Rule(BLOCK + r'attn\.qkvo\.weight$', STAGE + 'attn.in_proj.weight', linear),
        Rule(BLOCK + r'attn\.qkvo\.', STAGE + 'attn.in_proj.'),
        Rule(BLOCK + r'attn\.proj\.weight$', STAGE + 'attn.proj.weight', linear),
        Rule(BLOCK + r'attn\.(lepe|proj)\.', STAGE + r'attn.\3.'),
        Rule(BLOCK + r'ffn\.(fc1|fc2)\.weight$', STAGE + r'ffn.\3.weight', linear),
        Rule(BLOCK + r'ffn\.(fc1|fc2|dwconv)\.', STAGE + r'ffn.\3.'),
        Rule(BLOCK + r'gamma_([12])$', STAGE + r'gamma\3', _vector),
        Rule(LAYER + r'downsample\.reduction\.', r'backbone.downsamples.\1.conv.'),
        Rule(LAYER + r'downsample\.norm\.', r'backbone.downsamples.\1.bn.'),
        Rule(BACKBONE + r'extra_norms\.(\d+)\.norm\.', r'backbone.out_norms.\1.'),
        Rule(LAYER + r'RoPE\.angle$', None, reason='rotary angles, which the model computes'),
        Rule(r'proj\.', 'neck.conv.'),
        Rule(r'norm\.', 'neck.bn.'),
        Rule(r'head\.weight$', 'head.fc.weight', linear),
        Rule(r'head\.', 'head.fc.'),
        *OPENMMLAB,
    ]
)
