"""The layers of a backbone that a student replaces, and the configs that it refuses."""

import pytest
from mmengine.config import Config

from mmlinattn.engine import build_model
from mmlinattn.linearize import distilled_attentions, plan_student

BACKBONES = dict(
    vit=dict(
        type='ViT',
        arch=dict(embed_dims=16, num_heads=2, depth=4, patch_size=8),
        attn_cfg='SoftmaxAttention',
    ),
    mit=dict(
        type='MixTransformer',
        arch=dict(embed_dims=(8, 16, 24, 32), depths=(1, 2, 1, 1), num_heads=(1, 2, 2, 2)),
    ),
    swin=dict(
        type='Swin',
        arch=dict(embed_dims=(8, 16, 24, 32), depths=(1, 2, 1, 1), num_heads=(1, 2, 2, 2)),
        window_size=4,
    ),
    mavit=dict(type='MAViT', arch='tiny'),
)


def config(backbone: dict) -> Config:
    model = dict(type='mmpretrain.ImageClassifier', backbone=dict(backbone))
    return Config(dict(default_scope='mmpretrain', model=model))


def kinds(cfg: Config) -> list:
    layers = build_model(cfg).backbone.layer_attn_cfgs
    return [layer['type'] if isinstance(layer, dict) else layer for layer in layers]


@pytest.mark.parametrize(
    'name, keep, expected',
    [
        ('vit', [], ['MALA'] * 4),
        ('vit', [1, 'last1'], ['MALA', 'SoftmaxAttention', 'MALA', 'SoftmaxAttention']),
        ('mit', [2], ['MALA', 'MALA', 'SpatialReductionAttention', 'MALA', 'MALA']),
        ('swin', ['last2'], ['MALA', 'MALA', 'MALA', 'WindowAttention', 'WindowAttention']),
    ],
)
def test_softmax_layers_are_replaced_but_for_those_kept(name, keep, expected):
    cfg = config(BACKBONES[name])
    plan = plan_student(cfg, dict(type='MALA'), keep)
    assert kinds(plan.cfg) == expected
    assert plan.replaced == [i for i, kind in enumerate(expected) if kind == 'MALA']
    assert plan.parts == ['backbone']
    assert plan.kept == [i for i, kind in enumerate(expected) if kind != 'MALA']
    models = [build_model(each) for each in (cfg, plan.cfg)]
    assert len(distilled_attentions(*models)) == len(plan.replaced)
    assert kinds(cfg) != expected  # the teacher's config is as it was


@pytest.mark.parametrize(
    'name, out_indices, keep, expected, replaced',
    [
        ('vit', (0, 2), ['last2'], ['MALA'] + ['SoftmaxAttention'] * 2 + ['MALA'], [0]),
        ('swin', (0, 1), [], ['MALA'] * 5, [0, 1, 2]),
    ],
)
def test_layers_that_are_not_built(name, out_indices, keep, expected, replaced):
    """A backbone without its last layers has none to keep there, and reports none."""
    plan = plan_student(config(dict(BACKBONES[name], out_indices=out_indices)), 'MALA', keep)
    assert kinds(plan.cfg) == expected
    assert plan.replaced == replaced
    with pytest.raises(ValueError, match='leaves nothing to replace'):
        plan_student(config(dict(BACKBONES['vit'], out_indices=(0, 2))), 'MALA', [0, 1, 2])


def test_linear_layers_and_options_stay():
    """A hybrid keeps what is linear; kept layers keep their options, and shifts their place."""
    plan = plan_student(config(BACKBONES['mavit']), dict(type='RALA', lepe=3), ['last1'])
    found = kinds(plan.cfg)
    assert found == ['MALA'] * 4 + ['RALA'] * 7 + ['SoftmaxAttention']
    assert plan.cfg.model.backbone.attn_cfg[4] == dict(type='RALA', lepe=3)
    windows = dict(BACKBONES['swin'], attn_cfg=dict(type='WindowAttention', relative_bias=False))
    plan = plan_student(config(windows), 'MALA', [2])
    assert plan.cfg.model.backbone.attn_cfg == dict(
        default='MALA', WindowAttention=dict(layers=[2], relative_bias=False)
    )
    kept = build_model(plan.cfg).backbone.stages[1][1].attn
    assert kept.shift and kept.relative_bias is None


def test_other_weights_are_not_loaded():
    vit = dict(BACKBONES['vit'], init_cfg=dict(type='Pretrained', checkpoint='nowhere.pth'))
    assert plan_student(config(vit), 'MALA').cfg.model.backbone.init_cfg is None


@pytest.mark.parametrize(
    'backbone, attn, keep, message',
    [
        (dict(BACKBONES['vit'], attn_cfg='RALA'), 'MALA', [], 'ViT with RALA, has no softmax'),
        (dict(type='ResNet', depth=18), 'MALA', [], 'model.backbone is ResNet; linearize takes'),
        (BACKBONES['vit'], 'SoftmaxAttention', [], '--attn SoftmaxAttention is softmax attention'),
        (BACKBONES['swin'], 'WindowAttention', [], '--attn WindowAttention is softmax attention'),
        (BACKBONES['vit'], 'MALA', [4], '--keep-softmax 4: names layer 4, but there are 4 layers'),
        (BACKBONES['vit'], 'MALA', ['last5'], "names layer 'last5', but there are 4 layers"),
        (BACKBONES['vit'], 'MALA', ['last4'], 'leaves nothing to replace: the softmax layers'),
        (BACKBONES['vit'], 'EnhancedLinearAttention', [],
         '--attn EnhancedLinearAttention in ViT: .* does not support extra tokens, such'),
        (BACKBONES['vit'], 'MALLA', [], "'MALLA' is not registered; did you mean MALA"),
        (BACKBONES['vit'], dict(type='MALA', lepee=3), [], 'did you mean lepe'),
    ],
)  # fmt: skip
def test_refused_configs(backbone, attn, keep, message):
    with pytest.raises((ValueError, KeyError, TypeError), match=message):
        plan_student(config(backbone), attn, keep)
