"""Cases of layers and blocks."""

from functools import partial
from typing import Dict

import torch
from torch import nn

from .problems import DECAY, NUM_ANCHORS
from .registry import Baseline, Baselines, Setup, case

# Reduction in the first stage of SegFormer.
SR_RATIO = 8


@case(
    'random-walk-layer',
    "RWGKA against SegFormer's own attention (keys and values reduced "
    f'{SR_RATIO}x{SR_RATIO} times, quadratic all the same) and full softmax attention. With '
    '--heads 1 --head-dim 32 it is the first stage of SegFormer-B0; 65k tokens are a 1024x1024 '
    'image.',
)
def _random_walk_layer(setup: Setup) -> Baselines:
    from mmlinattn.models.layers import RWGKA, RWGKP, SoftmaxAttention, SpatialReductionAttention

    x = setup.tokens()

    def baseline(kind: type, quadratic: bool = False, **options) -> Baseline:
        layer = setup.module(kind(setup.embed_dims, setup.heads, **options))
        return Baseline.of_module(layer, x, setup.hw_shape, quadratic=quadratic)

    return {
        'RWGKA': baseline(RWGKA, num_anchors=NUM_ANCHORS, decay=DECAY),
        'RWGKP': baseline(RWGKP, num_anchors=NUM_ANCHORS, decay=DECAY),
        'one step': baseline(RWGKA, num_anchors=NUM_ANCHORS, steps=1),
        'spatial reduction': baseline(SpatialReductionAttention, quadratic=True, sr_ratio=SR_RATIO),
        'SDPA softmax': baseline(SoftmaxAttention, quadratic=True),
    }


# One number per pair of tokens and head takes 4 GB at this size, and would take 34 GB at 65k.
PAIRED_TOKENS = 2**14
QUADRATIC = {
    'SoftmaxAttention', 'BiasedSoftmaxAttention', 'GatedPositionalAttention',
    'ConvProjectionAttention', 'SpatialReductionAttention',
}  # fmt: skip


def attentions() -> Dict[str, type]:
    """Return the attentions of this package by name, softmax attention first."""
    from mmlinattn.models.layers import BaseAttention, registered_subclasses

    found = registered_subclasses(BaseAttention).items()
    kinds = {
        name: kind for name, kind in found if kind.__module__.startswith('mmlinattn.models.layers')
    }
    return {'SoftmaxAttention': kinds.pop('SoftmaxAttention'), **kinds}


@case(
    'attentions',
    'Every attention with its defaults, projections included; the table of docs/attentions.md.',
)
def _attention_layers(setup: Setup) -> Baselines:
    from mmlinattn.models.layers import tokens_to_map
    from mmlinattn.projects.video import NonLocalBlock

    x = setup.tokens()
    x_map = setup.leaf(tokens_to_map(x, setup.hw_shape))
    baselines = {}
    for name, kind in attentions().items():
        if name == 'BiasedSoftmaxAttention' and setup.num_tokens > PAIRED_TOKENS:
            continue
        layer = setup.module(kind(setup.embed_dims, setup.heads))
        quadratic = name in QUADRATIC
        baselines[name] = Baseline.of_module(layer, x, setup.hw_shape, quadratic=quadratic)
    block = setup.module(NonLocalBlock(setup.embed_dims))
    baselines['NonLocalBlock'] = Baseline.of_module(block, x_map, quadratic=True)
    return baselines


QUERY_GROUPS = 100  # of two denoising queries: the most of DINO


@case(
    'denoising-mask',
    f"LinearCrossAttention with DINO's mask of {QUERY_GROUPS} groups of denoising queries beside "
    'that many queries, and without it, against softmax attention of mmcv (use --tokens 900 '
    '--batch 2 --heads 8 --head-dim 32).',
)
def _denoising_mask(setup: Setup) -> Baselines:
    from mmcv.cnn.bricks.transformer import MultiheadAttention

    from mmlinattn.models.layers import LinearCrossAttention

    # Groups of two denoising queries are hidden from all others.
    groups = torch.arange(2 * QUERY_GROUPS, device=setup.device) // 2
    mask = nn.functional.pad(groups[:, None] != groups, (0, setup.num_tokens))
    rest = mask.new_zeros(setup.num_tokens, len(groups) + setup.num_tokens)
    rest[:, : len(groups)] = True
    mask = torch.cat([mask, rest])
    x = setup.tokens(len(mask))

    def baseline(layer: nn.Module, **options) -> Baseline:
        layer = setup.module(layer)
        return Baseline(partial(layer, x, **options), (x,), tuple(layer.parameters()), same=False)

    dims, heads = setup.embed_dims, setup.heads
    linear = LinearCrossAttention(dims, heads)
    return {
        f'MALA, {QUERY_GROUPS} groups': baseline(linear, attn_mask=mask),
        f"mmcv's MultiheadAttention, {QUERY_GROUPS} groups": baseline(
            MultiheadAttention(dims, heads, batch_first=True), attn_mask=mask
        ),
        'MALA without a mask': baseline(linear),
    }
