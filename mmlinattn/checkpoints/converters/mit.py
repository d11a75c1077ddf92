"""Key mapping for MiT weights from the SegFormer release or from MMSegmentation.

The release has classifiers (``patch_embed1.proj.weight``, ..., ``head``). MMSegmentation has their
converted backbones (``layers.0.0.projection.weight``, ...) and complete segmentors.
"""

import re
from typing import Callable, Dict, Mapping, Tuple

from torch import Tensor

from .key_mapping import OPENMMLAB, KeyMap, Rule, fuse, linear

BACKBONE = r'(?:backbone\.)?'


def _from_one(template: str) -> Callable[[re.Match], str]:
    """Return a function that fills the template with the stage counted from 0.

    The release counts stages from 1.
    """
    return lambda match: template.format(int(match[1]) - 1, *match.groups()[1:])


RELEASED_BLOCK = BACKBONE + r'block(\d)\.(\d+)\.'
RELEASED = (
    Rule(BACKBONE + r'patch_embed(\d)\.', _from_one('backbone.patch_embeds.{}.')),
    Rule(
        RELEASED_BLOCK + r'(norm[12]|attn\.(?:in_proj|proj|sr|norm))\.',
        _from_one('backbone.stages.{}.{}.{}.'),
    ),
    Rule(RELEASED_BLOCK + r'mlp\.(fc[12])\.', _from_one('backbone.stages.{}.{}.ffn.{}.')),
    Rule(RELEASED_BLOCK + r'mlp\.dwconv\.dwconv\.', _from_one('backbone.stages.{}.{}.ffn.dwconv.')),
    Rule(BACKBONE + r'norm(\d)\.', _from_one('backbone.norms.{}.')),
    Rule(r'head\.', 'head.fc.'),
)

MMSEG_BLOCK = BACKBONE + r'layers\.(\d)\.1\.(\d+)\.'
STAGE = r'backbone.stages.\1.\2.'
MMSEG = (
    Rule(BACKBONE + r'layers\.(\d)\.0\.projection\.', r'backbone.patch_embeds.\1.proj.'),
    Rule(BACKBONE + r'layers\.(\d)\.0\.norm\.', r'backbone.patch_embeds.\1.norm.'),
    Rule(BACKBONE + r'layers\.(\d)\.2\.', r'backbone.norms.\1.'),
    Rule(MMSEG_BLOCK + r'attn\.attn\.in_proj_', STAGE + 'attn.in_proj.'),
    Rule(MMSEG_BLOCK + r'attn\.attn\.out_proj\.', STAGE + 'attn.proj.'),
    Rule(MMSEG_BLOCK + r'(norm[12]|attn\.(?:sr|norm))\.', STAGE + r'\3.'),
    Rule(MMSEG_BLOCK + r'ffn\.layers\.0\.weight$', STAGE + 'ffn.fc1.weight', linear),
    Rule(MMSEG_BLOCK + r'ffn\.layers\.0\.', STAGE + 'ffn.fc1.'),
    Rule(MMSEG_BLOCK + r'ffn\.layers\.1\.', STAGE + 'ffn.dwconv.'),
    Rule(MMSEG_BLOCK + r'ffn\.layers\.4\.weight$', STAGE + 'ffn.fc2.weight', linear),
    Rule(MMSEG_BLOCK + r'ffn\.layers\.4\.', STAGE + 'ffn.fc2.'),
)
NAMES = KeyMap([*RELEASED, *MMSEG, *OPENMMLAB])


def convert_mit(state_dict: Mapping[str, Tensor]) -> Tuple[Dict[str, Tensor], Mapping[str, int]]:
    """Rename MiT weights and fuse the released projections of queries, keys and values.

    Returns:
        new name -> tensor, and the number of omitted tensors by reason.
    """
    return NAMES(fuse(state_dict, ('attn.q', 'attn.kv'), 'attn.in_proj'))
