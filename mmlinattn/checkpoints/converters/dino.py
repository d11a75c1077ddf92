"""Key mapping for DINOv2 and DINOv3 from their releases, timm and transformers."""

from typing import Mapping

import torch
from torch import Tensor

from ..errors import CheckpointError
from .key_mapping import BACKBONE, HF_QKV, Converted, KeyRule, fuse, rename
from .vit import HF, HF_LAYER, LAYER, NAMES, POSITIONS, TIMM, TIMM_LAYERS, convert_positions

REGISTERS = 'backbone.embed.registers'
DINOV2 = (
    KeyRule(BACKBONE + r'(?:register_tokens|reg_token)$', REGISTERS),
    KeyRule(TIMM + r'mlp\.w12\.', LAYER + 'ffn.fc1.'),
    KeyRule(TIMM + r'mlp\.w3\.', LAYER + 'ffn.fc2.'),
    KeyRule(HF + r'embeddings\.register_tokens$', REGISTERS),
    KeyRule(HF_LAYER + r'mlp\.weights_in\.', LAYER + 'ffn.fc1.'),
    KeyRule(HF_LAYER + r'mlp\.weights_out\.', LAYER + 'ffn.fc2.'),
    *NAMES,
)


def convert_dinov2(state_dict: Mapping[str, Tensor]) -> Converted:
    """Rename weights of DINOv2, with or without registers.

    timm has no position of the class token in models with registers; it gets one of zeros.

    Raises:
        CheckpointError: see :func:`rename`; also for weights without positions, as of DINOv3.
    """
    tensors, left_out = rename(fuse(state_dict, HF_QKV, 'attention.in_proj'), DINOV2)
    if POSITIONS not in tensors:
        raise CheckpointError('the checkpoint has no pos_embed: DINOv3 needs source dinov3')
    return convert_positions(tensors), left_out


DINOV3_LAYER = r'(?:model\.)?layer\.(\d+)\.'
DINOV3 = (
    KeyRule(r'(?:embeddings\.)?cls_token$', 'backbone.embed.cls_token'),
    KeyRule(r'(?:storage_tokens|reg_token|embeddings\.register_tokens)$', REGISTERS),
    KeyRule(r'(?:patch_embed\.proj|embeddings\.patch_embeddings)\.', 'backbone.embed.proj.'),
    KeyRule(TIMM + r'attn\.qkv\.bias_mask$', None, reason='masks of the biases of keys'),
    *TIMM_LAYERS,
    KeyRule(TIMM + r'mlp\.w3\.', LAYER + 'ffn.fc2.'),
    KeyRule(r'norm\.', 'backbone.norm.'),
    KeyRule(r'head\.(?=weight$|bias$)', 'head.fc.'),
    KeyRule(r'rope_embed\.periods$', None, reason='rotary periods, which the model computes'),
    KeyRule(r'local_cls_norm\.', None, reason='norms of the local crops of the pre-training'),
    KeyRule(DINOV3_LAYER + r'attention\.in_proj\.', LAYER + 'attn.in_proj.'),
    KeyRule(DINOV3_LAYER + r'attention\.o_proj\.', LAYER + 'attn.proj.'),
    KeyRule(DINOV3_LAYER + r'norm([12])\.', LAYER + r'norm\2.'),
    KeyRule(DINOV3_LAYER + r'layer_scale([12])\.lambda1$', LAYER + r'gamma\2'),
    KeyRule(DINOV3_LAYER + r'mlp\.(?:up_proj|fc1)\.', LAYER + 'ffn.fc1.'),
    KeyRule(DINOV3_LAYER + r'mlp\.down_proj\.', LAYER + 'ffn.fc2.'),
    KeyRule(r'(?:.*\.)?mask_token$', None, reason='mask tokens of the pre-training'),
)
HEAD_DIMS = {4096: 128}  # of DINOv3 7B; all smaller models have 64
# Gate and value of a gated feed-forward layer: of the release, timm and transformers.
GATED = (('w1', 'w2'), ('fc1_g', 'fc1_x'), ('gate_proj', 'up_proj'))


def convert_dinov3(state_dict: Mapping[str, Tensor]) -> Converted:
    """Rename weights of DINOv3 and bring the channels of queries and keys into pairs.

    DINOv3 rotates channel t of a head with channel t + d / 2. Here neighbouring channels form a
    pair, so that every attention with rotary position takes these weights. Keys get biases of
    zeros, as do queries and values if the file has none.

    Raises:
        CheckpointError: see :func:`rename`; also without registers, or for channels that are not a
            multiple of those of a head, which are 4 for each of ``rope_embed.periods``, or without
            them those of the release.
    """
    named = dict(state_dict)
    for name in state_dict:
        layer, found, part = name.rpartition('.attn.q_bias')
        if found and not part and f'{layer}.attn.v_bias' in state_dict:
            q, v = named.pop(name), named.pop(f'{layer}.attn.v_bias')
            named[f'{layer}.attn.qkv.bias'] = torch.cat([q, torch.zeros_like(q), v])
        layer, found, part = name.rpartition('.attention.q_proj.bias')
        if found and f'{layer}.attention.k_proj.bias' not in state_dict:
            named[f'{layer}.attention.k_proj.bias'] = torch.zeros_like(named[name])
    for gate, value in GATED:
        named = fuse(named, (f'mlp.{gate}', f'mlp.{value}'), 'mlp.fc1')
    parts = tuple(f'attention.{name}_proj' for name in 'qkv')
    tensors, left_out = rename(fuse(named, parts, 'attention.in_proj'), DINOV3)
    # EVA, BEiT and RoPE ViTs share names with DINOv3, which alone always has registers.
    if REGISTERS not in tensors:
        raise CheckpointError('it has no registers (storage_tokens), as all models of DINOv3 do')
    periods = state_dict.get('rope_embed.periods')
    for name in [name for name in tensors if name.endswith('attn.in_proj.weight')]:
        weight = tensors[name]
        bias = tensors.get(name.replace('weight', 'bias'), weight.new_zeros(len(weight)))
        dims = weight.shape[1]
        head_dim = HEAD_DIMS.get(dims, 64) if periods is None else 4 * len(periods)
        if not head_dim or dims % head_dim:
            raise CheckpointError(
                f'{name} has {dims} channels, which are no multiple of the {head_dim} of a head: '
                'add rope_embed.periods of the model, a number for every 4 channels of a head'
            )
        weight, bias = (_pair_channels(x, dims, head_dim) for x in (weight, bias))
        bias[dims : 2 * dims] = 0
        tensors[name], tensors[name.replace('weight', 'bias')] = weight, bias
    return tensors, left_out


def _pair_channels(x: Tensor, dims: int, head_dim: int) -> Tensor:
    """Return a projection (3 C, ...) with neighbouring pairs of channels in queries and keys."""
    heads, values = x[: 2 * dims].unflatten(0, (-1, 2, head_dim // 2)), x[2 * dims :]
    return torch.cat([heads.transpose(1, 2).flatten(0, 2), values])
