"""Swin weights: names of the release, of timm, or of MMDetection, MMSegmentation and MMPretrain."""

from typing import Callable, Dict, Mapping, Tuple

from torch import Tensor

from .key_mapping import OPENMMLAB, KeyMap, Rule

BACKBONE = r'(?:backbone\.)?'
RELEASED = BACKBONE + r'layers\.(\d)\.'
OPENMMLAB_STAGE = BACKBONE + r'stages\.(\d)\.'


def _channels(value: Tensor) -> Tensor:
    """(..., 4 C) that is channel by channel, each row by row, as the release has it: neighbour by
    neighbour, column by column."""
    return value.unflatten(-1, (-1, 2, 2)).transpose(-3, -1).flatten(-3)


def _merge(into: int) -> Callable:
    """The name of what leads from one stage to the next; ``into`` is 0 if it is counted with the
    former stage, 1 with the latter."""
    return lambda match: f'backbone.merges.{int(match[1]) - into}.'


def _rules(merge: Callable) -> KeyMap:
    blocks = [
        (r'norm([12])\.', r'norm\3.'),
        (r'attn\.(?:w_msa\.)?qkv\.', 'attn.in_proj.'),
        (r'attn\.(?:w_msa\.)?proj\.', 'attn.proj.'),
        (r'attn\.(?:w_msa\.)?relative_position_bias_table$', 'attn.relative_bias'),
        (r'mlp\.(fc[12])\.', r'ffn.\3.'),
        (r'ffn\.layers\.0\.0\.', 'ffn.fc1.'),
        (r'ffn\.layers\.1\.', 'ffn.fc2.'),
    ]
    return KeyMap(
        [
            Rule(r'.*(relative_position_index|attn_mask)$', None, reason='constants of windows'),
            Rule(BACKBONE + r'patch_embed\.proj(?:ection)?\.', 'backbone.patch_embed.proj.'),
            Rule(BACKBONE + r'patch_embed\.norm\.', 'backbone.patch_embed.norm.'),
            *(
                Rule(stage + r'blocks\.(\d+)\.' + theirs, r'backbone.stages.\1.\2.' + ours)
                for stage in (RELEASED, OPENMMLAB_STAGE)
                for theirs, ours in blocks
            ),
            Rule(RELEASED + r'downsample\.', merge),
            Rule(OPENMMLAB_STAGE + r'downsample\.', _merge(0), _channels),
            Rule(BACKBONE + r'norm([0-3])\.', r'backbone.out_norms.\1.'),
            Rule(r'norm\.', 'backbone.out_norms.3.'),
            Rule(r'head\.fc\.', 'head.fc.'),
            Rule(r'head\.(?=weight$|bias$)', 'head.fc.'),
            *OPENMMLAB,
        ]
    )


def convert_swin(state_dict: Mapping[str, Tensor]) -> Tuple[Dict[str, Tensor], Mapping[str, int]]:
    """Rename Swin weights; merged channels are in the order of the release.

    Returns:
        name here -> tensor, and a count of the tensors left out by reason.
    """
    # timm counts a merge with the stage behind it, so that the last one has one.
    counted_behind = any(name.startswith('layers.3.downsample.') for name in state_dict)
    return _rules(_merge(int(counted_behind)))(state_dict)
