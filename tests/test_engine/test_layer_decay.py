"""Learning rates that fall from the head to the stem."""

import re

import pytest
import torch
from mmengine.optim import build_optim_wrapper
from torch import nn

from mmlinattn.models import backbones

ARCH = dict(embed_dims=(8,) * 4, depths=(1, 2, 1, 1), num_heads=1)


ADAMW = dict(type='AdamW', lr=1.0, weight_decay=0.05)


def rates(backbone, optimizer=ADAMW, **paramwise):
    model = nn.Module()
    model.backbone, model.head = backbone, nn.Linear(2, 2)
    cfg = dict(
        type='OptimWrapper',
        constructor='LayerDecayOptimWrapperConstructor',
        optimizer=optimizer,
        paramwise_cfg=paramwise,
    )
    groups = build_optim_wrapper(model, cfg).optimizer.param_groups
    by_id = {id(p): group for group in groups for p in group['params']}
    return {name: by_id[id(p)] for name, p in model.named_parameters()}


def depth(name):
    """The layer of a parameter of RAVLT with blocks 1, 2 3, 4, 5; 6 is the rest."""
    stage = re.match(r'backbone\.stages\.(\d)\.(\d)\.', name)
    if stage:
        i, j = map(int, stage.groups())
        return (1, 2, 4, 5)[i] + j
    before = re.match(r'backbone\.downsamples\.(\d)\.', name)
    if before:
        return (2, 4, 5)[int(before[1])]
    return 0 if name.startswith('backbone.stem.') else 6


def test_rates_of_a_hierarchical_backbone():
    found = rates(
        backbones.RAVLT(ARCH, norm_cfg=dict(type='BN')), layer_decay_rate=0.5, norm_decay_mult=0.0
    )
    assert {depth(name) for name in found} == {*range(7)}
    for name, group in found.items():
        assert group['lr'] == 0.5 ** (6 - depth(name)), name
    assert found['head.weight']['lr'] == found['backbone.out_norms.0.weight']['lr'] == 1
    # The options of MMEngine apply as well.
    assert found['backbone.stages.0.0.norm1.weight']['weight_decay'] == 0
    assert found['backbone.stages.0.0.ffn.fc1.weight']['weight_decay'] == 0.05


def test_rates_of_a_vit_are_those_of_mmpretrain():
    pretrain = pytest.importorskip('mmpretrain.models', reason='the definition is its own')
    theirs = pretrain.VisionTransformer('deit-t')
    ours = rates(backbones.ViT('deit-t'), layer_decay_rate=0.8)
    names = dict(
        cls_token='embed.cls_token', pos_embed='embed.pos_embed', **{
            'patch_embed.projection.weight': 'embed.proj.weight',
            'layers.0.attn.qkv.weight': 'layers.0.attn.in_proj.weight',
            'layers.11.ln1.weight': 'layers.11.norm1.weight', 'ln1.weight': 'norm.weight',
        }
    )  # fmt: skip
    for theirs_name, name in names.items():
        layer, count = theirs.get_layer_depth(theirs_name)
        assert ours[f'backbone.{name}']['lr'] == pytest.approx(0.8 ** (count - layer - 1)), name


@pytest.mark.parametrize('kind', [backbones.CvT, backbones.ViL, backbones.Swin])
def test_every_block_has_a_depth_of_its_own(kind):
    with torch.device('meta'):
        found = rates(kind(), layer_decay_rate=0.5)
        blocks = sum(kind().arch['depths'])
    used = {group['lr'] for name, group in found.items() if '.stages.' in name}
    assert used == {0.5**n for n in range(1, blocks + 1)}


VIT = dict(embed_dims=8, num_heads=1, depth=3, patch_size=8)


@pytest.mark.parametrize(
    ('backbone', 'scales'),
    [
        (lambda: backbones.CvT(), {'cls_token': 10, 'stages.2.0.norm1.weight': 10}),
        (lambda: backbones.ViT(VIT, cls_token_from=1), {'cls_token': 2, 'norm.weight': 0}),
        (
            lambda: backbones.ViT(VIT, 'CoreAttention'),
            {'cores.tokens': 4, 'cores.moves.0.weight': 2, 'cores.moves.1.alpha': 1},
        ),
        (lambda: backbones.ViL(), {'patch_embeds.0.extra_tokens': 13}),
    ],
)
def test_tokens_and_steps_of_cores_have_the_rate_of_their_block(backbone, scales):
    with torch.device('meta'):
        found = rates(backbone(), layer_decay_rate=0.5)
    assert all(found[f'backbone.{name}']['lr'] == 0.5**scale for name, scale in scales.items())
    full = {name for name, group in found.items() if group['lr'] == 1}
    assert all('norm' in name or name.startswith('head.') for name in full), full


@pytest.mark.parametrize('rate', [None, 0, 1.1, '0.5'])
def test_wrong_rates(rate):
    with pytest.raises(
        ValueError, match=r'layer_decay_rate must be in \(0, 1\], got ' + repr(rate)
    ):
        rates(backbones.RAVLT(ARCH, norm_cfg=dict(type='BN')), layer_decay_rate=rate)


def test_an_optimizer_without_a_rate():
    backbone = backbones.RAVLT(ARCH, norm_cfg=dict(type='BN'))
    with pytest.raises(ValueError, match=r'optim_wrapper\.optimizer\.lr is missing'):
        rates(backbone, dict(type='AdamW'), layer_decay_rate=0.5)


def test_another_backbone():
    with pytest.raises(TypeError, match='but model.backbone is Conv2d'):
        rates(nn.Conv2d(3, 3, 1), layer_decay_rate=0.5)
