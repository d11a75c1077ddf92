"""Key mapping for Swin weights from the release, timm or OpenMMLab."""

from typing import Callable, Dict, Mapping, Tuple

from torch import Tensor

from .key_mapping import OPENMMLAB, KeyMap, Rule

BACKBONE = r'(?:backbone\.)?'
RELEASED = BACKBONE + r'layers\.(\d)\.'
OPENMMLAB_STAGE = BACKBONE + r'stages\.(\d)\.'


def _channels(value: Tensor) -> Tensor:
    """Reorder merged channels (..., 4 C) from OpenMMLab's order to that of the release.

    OpenMMLab's order is (channel, row, column), that of the release (column, row, channel).
    """
    return value.unflatten(-1, (-1, 2, 2)).transpose(-3, -1).flatten(-3)


def _merge(into: int) -> Callable:
    """Return a function that names the patch merging between two stages.

    ``into`` is 0 if the release counts it with the stage before, 1 if with the stage after.
    """
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
    """Rename Swin weights and order merged channels as the release does.

    Returns:
        new name -> tensor, and the number of omitted tensors by reason.
    """
    # timm counts a merge with the stage after it, so the last stage has one.
    counted_behind = any(name.startswith('layers.3.downsample.') for name in state_dict)
    return _rules(_merge(int(counted_behind)))(state_dict)
