"""Key mapping for Swin weights from the release, timm, OpenMMLab or transformers.

Also for those of FLatten-Transformer, PolaFormer, InLine and Agent attention in Swin.
"""

from typing import Any, Dict, Mapping

from torch import Tensor

from ..errors import CheckpointError
from .key_mapping import (
    BACKBONE,
    HF_LAYER_PARTS,
    HF_SELF_QKV,
    OPENMMLAB,
    Converted,
    KeyRule,
    from_one,
    fuse,
    rename,
)

RELEASED = BACKBONE + r'layers\.(\d)\.'
HF = r'(?:swin\.)?'
HF_STAGE = HF + r'encoder\.layers\.(\d)\.'
OPENMMLAB_STAGE = BACKBONE + r'stages\.(\d)\.'


def _channels(value: Tensor) -> Tensor:
    """Reorder merged channels (..., 4 C) from OpenMMLab's order to that of the release.

    OpenMMLab's order is (channel, row, column), that of the release (column, row, channel).
    """
    return value.unflatten(-1, (-1, 2, 2)).transpose(-3, -1).flatten(-3)


# Biases of agent attention: ours, and theirs without the dims of size 1, as (heads, agents, place).
AGENT_BIASES = dict(
    an=('key_bias_table', None),
    ah=('key_bias_rows', lambda bias: bias[0, ..., 0]),
    aw=('key_bias_columns', lambda bias: bias[0, :, :, 0]),
    na=('query_bias_table', None),
    ha=('query_bias_rows', lambda bias: bias[0, :, :, 0].transpose(1, 2)),
    wa=('query_bias_columns', lambda bias: bias[0, :, 0].transpose(1, 2)),
)
# Names of a block in all sources, and here.
BLOCKS = (
    (r'norm([12])\.', r'norm\3.'),
    (r'attn\.(?:w_msa\.)?qkv\.', 'attn.in_proj.'),
    (r'attn\.(?:w_msa\.)?proj\.', 'attn.proj.'),
    (r'attn\.(?:w_msa\.)?relative_position_bias_table$', 'attn.relative_bias'),
    (r'mlp\.(fc[12])\.', r'ffn.\3.'),
    (r'ffn\.layers\.0\.0\.', 'ffn.fc1.'),
    (r'ffn\.layers\.1\.', 'ffn.fc2.'),
    (r'attn\.qkvg\.', 'attn.in_proj.'),
    (r'attn\.dwc\.', 'attn.lepe.'),
    (r'attn\.residual\.', 'attn.local_weights.'),
    (r'attn\.(scale|power)$', r'attn.feature_map.\3'),
    (r'attn\.positional_encoding$', 'attn.position.embedding'),
    (r'attention\.self\.in_proj\.', 'attn.in_proj.'),
    (r'attention\.self\.relative_position_bias_table$', 'attn.relative_bias'),
    *HF_LAYER_PARTS,
)
BLOCK = r'backbone.stages.\1.\2.'
RULES = (
    KeyRule(r'.*(relative_position_index|attn_mask)$', None, reason='constants of windows'),
    KeyRule(BACKBONE + r'patch_embed\.proj(?:ection)?\.', 'backbone.patch_embed.proj.'),
    KeyRule(BACKBONE + r'patch_embed\.norm\.', 'backbone.patch_embed.norm.'),
    *(
        KeyRule(stage + r'blocks\.(\d+)\.' + theirs, BLOCK + ours)
        for stage in (RELEASED, OPENMMLAB_STAGE, HF_STAGE)
        for theirs, ours in BLOCKS
    ),
    *(
        KeyRule(RELEASED + rf'blocks\.(\d+)\.attn\.{theirs}_bias$', f'{BLOCK}attn.{ours}', reshape)
        for theirs, (ours, reshape) in AGENT_BIASES.items()
    ),
    KeyRule(HF_STAGE + r'downsample\.', r'backbone.merges.\1.'),
    KeyRule(HF + r'embeddings\.norm\.', 'backbone.patch_embed.norm.'),
    KeyRule(HF + r'embeddings\.patch_embeddings\.projection\.', 'backbone.patch_embed.proj.'),
    KeyRule(HF + r'layernorm\.', 'backbone.out_norms.3.'),
    KeyRule(r'classifier\.', 'head.fc.'),
    KeyRule(OPENMMLAB_STAGE + r'downsample\.', r'backbone.merges.\1.', _channels),
    KeyRule(BACKBONE + r'norm([0-3])\.', r'backbone.out_norms.\1.'),
    KeyRule(r'norm\.', 'backbone.out_norms.3.'),
    KeyRule(r'head\.(?:fc\.|(?=weight$|bias$))', 'head.fc.'),
    *OPENMMLAB,
)


def convert_swin(state_dict: Mapping[str, Tensor]) -> Converted:
    """Rename Swin weights and order merged channels as the release does.

    Raises:
        CheckpointError: an attention lacks a tensor.
    """
    # timm counts a merge with the stage after it, so the last stage has one.
    ours: Any = r'backbone.merges.\1.'
    if any(name.startswith('layers.3.downsample.') for name in state_dict):
        ours = from_one('backbone.merges.{}.')
    merge = KeyRule(RELEASED + r'downsample\.', ours)
    fused = fuse(state_dict, HF_SELF_QKV, 'self.in_proj')
    return rename(_split_heads(fused), (merge, *RULES))


def _split_heads(state_dict: Mapping[str, Tensor]) -> Dict[str, Tensor]:
    """Reshape what FLatten-Transformer and PolaFormer have over the channels of all heads."""
    tensors = dict(state_dict)
    for name in state_dict:
        prefix, found, _ = name.partition('attn.positional_encoding')
        if not found:
            continue
        position, scale, conv = (
            f'{prefix}attn.{part}' for part in ('positional_encoding', 'scale', 'dwc.weight')
        )
        power, bias = f'{prefix}attn.power', f'{prefix}attn.dwc.bias'
        for part in (scale, conv) if power in tensors else (scale, conv, bias):
            if part not in tensors:
                raise CheckpointError(f'the checkpoint has {name}, but no {part}')
        heads = tensors[scale].shape[-1] // len(tensors[conv])
        tensors[position] = tensors[position].unflatten(-1, (heads, -1)).transpose(1, 2)
        tensors[scale] = tensors[scale].view(heads, 1, -1)
        if power in tensors:
            tensors[power] = tensors[power][0]
        else:  # FLatten-Transformer shares the convolution too; here it is one per channel
            tensors[conv] = tensors[conv].repeat(heads, 1, 1, 1)
            tensors[bias] = tensors[bias].repeat(heads)
    return tensors
