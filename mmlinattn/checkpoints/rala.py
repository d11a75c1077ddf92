"""Released RALA / RAVLT weights: names of the release to names of this package.

A released file is one of: a classifier (names without a prefix, ``proj`` / ``norm`` / ``head``
behind the last stage), a dense backbone (the same without these, ``extra_norms`` instead), or a
whole MMDetection 2.x / MMSegmentation 0.x model (``backbone.`` in front; neck and heads have kept
their names in MMDetection 3.x / MMSegmentation 1.x).
"""

import re
from typing import Optional

from torch import Tensor

BLOCK = r'layers\.(\d+)\.blocks\.(\d+)\.'
STAGE = r'stages.\1.\2.'
# Released name (after ``backbone.``), name here. The stem's Sequential counts conv, norm, GELU.
BACKBONE = [
    (r'patch_embed\.proj\.(0|3|6|9)\.', lambda m: f'stem.{int(m[1]) // 3}.conv.'),
    (r'patch_embed\.proj\.(1|4|7|10)\.', lambda m: f'stem.{int(m[1]) // 3}.bn.'),
    (BLOCK + r'pos\.', STAGE + 'cpe.'),
    (BLOCK + r'norm([12])\.norm\.', STAGE + r'norm\3.'),
    (BLOCK + r'attn\.qkvo\.', STAGE + 'attn.in_proj.'),
    (BLOCK + r'attn\.(lepe|proj)\.', STAGE + r'attn.\3.'),
    (BLOCK + r'ffn\.', STAGE + 'ffn.'),
    (BLOCK + r'gamma_([12])$', STAGE + r'gamma\3'),
    (r'layers\.(\d+)\.downsample\.reduction\.', r'downsamples.\1.conv.'),
    (r'layers\.(\d+)\.downsample\.norm\.', r'downsamples.\1.bn.'),
    (r'extra_norms\.(\d+)\.norm\.', r'out_norms.\1.'),
]
CLASSIFIER = [
    (r'proj\.', 'neck.conv.'),
    (r'norm\.', 'neck.bn.'),
    (r'head\.', 'head.fc.'),
]
# Angles of the rotary position: a constant, computed here from the map size.
DROPPED = re.compile(r'layers\.\d+\.RoPE\.angle$')
HEADS = re.compile(
    r'(neck|rpn_head|bbox_head|roi_head|mask_head|decode_head|auxiliary_head)\.'
)


def rename(key: str) -> Optional[str]:
    """Name here of a released name: None to drop it, KeyError if it is unknown.

    Example:
        >>> rename('layers.2.blocks.5.attn.qkvo.weight')
        'backbone.stages.2.5.attn.in_proj.weight'
    """
    if HEADS.match(key):
        return key
    bare = key[len('backbone.') :] if key.startswith('backbone.') else key
    if DROPPED.match(bare):
        return None
    for pattern, replacement in BACKBONE:
        if re.match(pattern, bare):
            return 'backbone.' + re.sub('^' + pattern, replacement, bare)
    for pattern, replacement in CLASSIFIER if bare == key else ():
        if re.match(pattern, bare):
            return re.sub('^' + pattern, replacement, bare)
    raise KeyError(key)


def reshape(key: str, value: Tensor) -> Tensor:
    """1x1 convolutions are linear layers here, and layer scales are vectors."""
    if re.search(r'\.(in_proj|attn\.proj|fc1|fc2|head\.fc|gamma[12])(\.weight)?$', '.' + key):
        return value.flatten(0) if 'gamma' in key else value.flatten(1)
    return value
