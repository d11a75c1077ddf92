"""CvT weights: names of the release to names of this package."""

from typing import Dict, Mapping, Tuple

from torch import Tensor

from .keymap import OPENMMLAB, KeyMap, Rule, fuse

BACKBONE = r'(?:backbone\.)?'
STAGE = BACKBONE + r'stage(\d)\.'
BLOCK = STAGE + r'blocks\.(\d+)\.'
OURS = r'backbone.stages.\1.\2.'

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
        *OPENMMLAB,
    ]
)
PROJECTIONS = ('attn.proj_q', 'attn.proj_k', 'attn.proj_v')


def convert_cvt(state_dict: Mapping[str, Tensor]) -> Tuple[Dict[str, Tensor], Mapping[str, int]]:
    """Renames CvT weights; queries, keys and values become one projection.

    Returns:
        name here -> tensor, and a count of the tensors left out by reason.
    """
    return NAMES(fuse(state_dict, PROJECTIONS, 'attn.in_proj'))
