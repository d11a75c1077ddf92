"""Released SMCA files, their names written out here by hand."""

import pytest
import torch
from mmengine.config import ConfigDict
from mmengine.registry import MODELS, DefaultScope
from mmengine.runner import load_checkpoint

import mmlinattn  # noqa: F401
from mmlinattn.checkpoints import CheckpointError, compare, convert, kind_of, save_checkpoint

pytest.importorskip('mmdet', reason='SMCA needs MMDetection')

DIMS, HEADS, HIDDEN, QUERIES, BASE, LAYERS = 16, 2, 24, 5, 4, 2
# The first and last categories of COCO, and those on both sides of gaps: class -> id.
CLASS_IDS = {0: 1, 10: 11, 11: 13, 24: 27, 26: 31, 60: 67, 61: 70, 73: 84, 79: 90}


def norm(name, dim=DIMS):
    return {f'{name}.weight': (dim,), f'{name}.bias': (dim,)}


def frozen_norm(name, dim):
    return {**norm(name, dim), f'{name}.running_mean': (dim,), f'{name}.running_var': (dim,)}


def resnet18(prefix):
    shapes = {'conv1.weight': (64, 3, 7, 7), **frozen_norm('bn1', 64)}
    inner = 64
    for i, out in enumerate((BASE, 2 * BASE, 4 * BASE, 8 * BASE), 1):
        for j in (0, 1):
            block = f'layer{i}.{j}'
            shapes[f'{block}.conv1.weight'] = (out, inner, 3, 3)
            shapes[f'{block}.conv2.weight'] = (out, out, 3, 3)
            shapes.update(frozen_norm(f'{block}.bn1', out))
            shapes.update(frozen_norm(f'{block}.bn2', out))
            if j == 0:
                shapes[f'{block}.downsample.0.weight'] = (out, inner, 1, 1)
                shapes.update(frozen_norm(f'{block}.downsample.1', out))
            inner = out
    return {prefix + name: shape for name, shape in shapes.items()}


def layer(kind, i, linear):
    name = f'transformer.{kind}.layers.{i}'
    shapes = {**linear(f'{name}.linear1', HIDDEN, DIMS), **linear(f'{name}.linear2', DIMS, HIDDEN)}
    attentions = ['self_attn'] + (['multihead_attn'] if kind == 'decoder' else [])
    for attn in attentions:
        shapes[f'{name}.{attn}.in_proj_weight'] = (3 * DIMS, DIMS)
        shapes[f'{name}.{attn}.in_proj_bias'] = (3 * DIMS,)
        shapes.update(linear(f'{name}.{attn}.out_proj', DIMS, DIMS))
    for j in (1, 2) if kind == 'encoder' else (1, 2, 3, 4):
        shapes.update(norm(f'{name}.norm{j}'))
    if kind == 'decoder':
        shapes.update(linear(f'{name}.point2', 2 * HEADS, DIMS))
        shapes.update(linear(f'{name}.point3', 2 * HEADS, DIMS))
        if i == 0:
            for j, out in enumerate((DIMS, DIMS, 2)):
                shapes.update(linear(f'{name}.point1.layers.{j}', out, DIMS))
    return shapes


def released_shapes(linear, columns=92):
    shapes = resnet18('backbone.0.body.')
    shapes['input_proj.weight'], shapes['input_proj.bias'] = (DIMS, 8 * BASE, 1, 1), (DIMS,)
    shapes['query_embed.weight'] = (QUERIES, DIMS)
    for kind in ('encoder', 'decoder'):
        for i in range(LAYERS):
            shapes.update(layer(kind, i, linear))
    shapes.update(norm('transformer.decoder.norm'))
    shapes.update(linear('class_embed', columns, DIMS))
    for j, out in enumerate((DIMS, DIMS, 4)):
        shapes.update(linear(f'bbox_embed.layers.{j}', out, DIMS))
    return shapes


@pytest.fixture
def smca(names, tensors):
    return tensors(released_shapes(names.linear))


def build(attn_cfg, num_classes=80):
    sizes = dict(embed_dims=DIMS, num_heads=HEADS, feedforward_channels=HIDDEN)
    cfg = dict(
        type='SMCA',
        num_queries=QUERIES,
        backbone=dict(
            type='ResNet', depth=18, base_channels=BASE, stem_channels=64, out_indices=(3,)
        ),
        neck=dict(
            type='ChannelMapper', in_channels=[8 * BASE], kernel_size=1, out_channels=DIMS,
            act_cfg=None, num_outs=1,
        ),
        encoder=dict(num_layers=LAYERS, layer_cfg=dict(sizes, attn_cfg=attn_cfg)),
        decoder=dict(num_layers=LAYERS, layer_cfg=sizes),
        positional_encoding=dict(num_feats=DIMS // 2, normalize=True),
        bbox_head=dict(
            type='SMCAHead', num_classes=num_classes, embed_dims=DIMS,
            loss_cls=dict(type='FocalLoss', use_sigmoid=True),
        ),
    )  # fmt: skip
    with DefaultScope.overwrite_default_scope('mmdet'):
        return MODELS.build(ConfigDict(cfg))


def test_loads_strictly(smca, tmp_path):
    converted = convert(smca, source='smca')
    assert kind_of(converted) == 'detector'
    model = build('SoftmaxAttention')
    report = compare(model.state_dict(), converted)
    assert not report.missing and not report.unexpected and not report.mismatched
    assert len(report.matched) == len(smca)
    save_checkpoint(tmp_path / 'smca.pth', converted, {})
    load_checkpoint(model, str(tmp_path / 'smca.pth'), strict=True)


@pytest.mark.parametrize('part', ['weight', 'bias'])
def test_class_rows_are_those_of_the_category_ids(smca, part):
    rows = convert(smca, source='smca')[f'bbox_head.fc_cls.{part}']
    assert len(rows) == 80
    for ours, theirs in CLASS_IDS.items():
        assert torch.equal(rows[ours], smca[f'class_embed.{part}'][theirs])


def test_other_data_sets_keep_their_rows(names, tensors):
    released = tensors(released_shapes(names.linear, columns=4))
    rows = convert(released, source='smca')['bbox_head.fc_cls.weight']
    assert torch.equal(rows, released['class_embed.weight'])


def test_values(smca):
    converted = convert(smca, source='smca')
    pairs = {
        'backbone.0.body.layer2.0.downsample.1.running_var': (
            'backbone.layer2.0.downsample.1.running_var'
        ),
        'transformer.encoder.layers.1.self_attn.in_proj_weight': (
            'encoder.layers.1.self_attn.in_proj.weight'
        ),
        'transformer.decoder.layers.1.multihead_attn.in_proj_bias': (
            'decoder.layers.1.cross_attn.in_proj.bias'
        ),
        'transformer.decoder.layers.0.norm3.weight': 'decoder.layers.0.norms.2.weight',
        'transformer.decoder.layers.1.norm4.weight': 'decoder.layers.1.point_norm.weight',
        'transformer.decoder.layers.1.point2.weight': 'decoder.layers.1.offset.weight',
        'transformer.decoder.layers.1.point3.weight': 'decoder.layers.1.scale.weight',
        'transformer.decoder.layers.0.point1.layers.2.bias': 'decoder.point.layers.2.bias',
        'bbox_embed.layers.1.weight': 'bbox_head.reg_ffn.layers.1.weight',
    }
    for theirs, ours in pairs.items():
        assert torch.equal(converted[ours], smca[theirs])


def test_another_attention_reports_what_the_release_has_not(smca):
    report = compare(
        build(dict(type='RALA', gate=None, lepe=3)).state_dict(), convert(smca, source='smca')
    )
    expected = [
        f'encoder.layers.{i}.self_attn.lepe.{part}'
        for i in range(LAYERS)
        for part in ('weight', 'bias')
    ]
    assert report.missing == expected
    assert not report.unexpected and not report.mismatched


def test_unknown_names(smca):
    smca['transformer.decoder.layers.1.point5.weight'] = torch.zeros(1)
    with pytest.raises(CheckpointError, match='point5'):
        convert(smca, source='smca')
