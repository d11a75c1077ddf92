"""Key mapping for released ViL weights."""

import math
import re
from collections import Counter
from typing import Dict, Mapping

import torch
from torch import Tensor

from ..errors import CheckpointError
from .key_mapping import (
    BACKBONE,
    OPENMMLAB,
    Converted,
    KeyRule,
    from_one,
    fuse,
    record_attention,
    rename,
)


def _block(match: re.Match) -> str:
    """Return the name of a block.

    In a stage of the release, layer 0 is the patch embedding. The attention and the MLP of block j
    are layers 2 j + 1 and 2 j + 2.
    """
    return f'backbone.stages.{int(match[1]) - 1}.{(int(match[2]) - 1) // 2}.'


def _half(name: str, ours: str) -> KeyRule:
    return KeyRule(BACKBONE + r'layer(\d)\.(\d+)\.' + name, lambda match: _block(match) + ours)


def _norm(match: re.Match) -> str:
    return _block(match) + ('norm1.' if int(match[2]) % 2 else 'norm2.')


EMBED = BACKBONE + r'layer(\d)\.0\.'
NAMES = (
    KeyRule(EMBED + r'norm_embed\.', from_one('backbone.patch_embeds.{}.norm.')),
    KeyRule(EMBED + r'x_pos_embed$', from_one('backbone.patch_embeds.{}.row_embed')),
    KeyRule(EMBED + r'y_pos_embed$', from_one('backbone.patch_embeds.{}.column_embed')),
    KeyRule(EMBED + r'cls_pos_embed$', from_one('backbone.patch_embeds.{}.extra_embed')),
    KeyRule(EMBED + r'cls_token$', from_one('backbone.patch_embeds.{}.extra_tokens')),
    KeyRule(EMBED + r'proj\.', from_one('backbone.patch_embeds.{}.proj.')),
    KeyRule(BACKBONE + r'layer(\d)\.(\d+)\.norm\.', _norm),
    _half(r'attn\.(?:qkv|in_proj)\.', 'attn.in_proj.'),
    _half(r'attn\.proj\.', 'attn.proj.'),
    _half(r'attn\.local_relative_position_bias_table$', 'attn.relative.table'),
    _half(r'attn\.g2l_relative_position_bias$', 'attn.relative.extra'),
    _half(r'attn\.g2g_relative_position_bias$', 'attn.relative.between'),
    KeyRule(r'.*relative_position_index$', None, reason='constants of relative positions'),
    _half(r'mlp\.', 'ffn.'),
    KeyRule(BACKBONE + r'norm\.', 'backbone.out_norms.3.'),
    KeyRule(r'head\.(?=weight$|bias$)', 'head.fc.'),
    *OPENMMLAB,
)


def convert_vil(state_dict: Mapping[str, Tensor]) -> Converted:
    """Rename ViL weights and fuse the projections of queries, keys and values.

    A table of relative positions is square in all releases; its reach is added as another tensor.
    The released model with attention between all tokens gets a record of it, as its weights have
    the shapes of those with windows.

    Raises:
        CheckpointError: see :func:`rename`; also if global tokens have their own projection.
    """
    kept: Dict[str, Tensor] = {}
    unused: Counter = Counter()
    for name, value in state_dict.items():
        shared = state_dict.get(name.replace('_global.', '.')) if '_global.' in name else None
        if shared is not None and not torch.equal(shared, value):
            raise CheckpointError(f'{name}: global tokens have a projection of their own')
        if shared is not None:
            unused['second names of projections that global tokens share'] += 1
        elif not value.numel():
            unused['empty positions of stages without global tokens'] += 1
        else:
            kept[name] = value
    fused = fuse(kept, ('attn.query', 'attn.kv'), 'attn.in_proj')
    tensors, left_out = rename(fused, NAMES)
    for name in [name for name in tensors if name.endswith('.relative.table')]:
        side = math.isqrt(len(tensors[name]))
        if side % 2 and side**2 == len(tensors[name]):
            tensors[f'{name}_reach'] = torch.tensor((side // 2, side // 2))
    names = {name.removeprefix('backbone.') for name in kept}
    whole = [f'layer{i}.1.attn.qkv.weight' in names for i in range(1, 5)]
    if any(whole[:2]):
        biased = 'Biased' * ('backbone.stages.0.0.attn.relative.table' in tensors)
        softmax, windows = f'{biased}SoftmaxAttention', 'VisionLongformerAttention'
        record_attention(tensors, [softmax if each else windows for each in whole])
    return tensors, left_out + unused
