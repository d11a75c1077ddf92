"""Fixtures: a small SMCA detector and recorded cases of the release."""

import copy

import pytest
import torch
from mmengine.config import ConfigDict
from mmengine.registry import MODELS, DefaultScope

from mmlinattn.checkpoints.converters import convert
from tests.recordings import below

pytest.importorskip('mmdet', reason='SMCA needs MMDetection')

BACKBONE = dict(
    type='RAVLT',
    arch=dict(embed_dims=(8, 8, 16, 16), depths=(1, 1, 1, 1), num_heads=(1, 1, 2, 2)),
    out_indices=(3,),
    norm_cfg=dict(type='BN'),
)


def model_cfg(dims, heads, hidden, encoders, decoders, queries, classes, attn_cfg, **layer) -> dict:
    sizes = dict(embed_dims=dims, num_heads=heads, feedforward_channels=hidden)
    return dict(
        type='SMCA',
        num_queries=queries,
        backbone=BACKBONE,
        neck=dict(
            type='ChannelMapper',
            in_channels=[16],
            kernel_size=1,
            out_channels=dims,
            act_cfg=None,
            norm_cfg=None,
            num_outs=1,
        ),
        encoder=dict(num_layers=encoders, layer_cfg=dict(sizes, attn_cfg=attn_cfg)),
        decoder=dict(num_layers=decoders, layer_cfg=dict(sizes, **layer)),
        positional_encoding=dict(num_feats=dims // 2, normalize=True),
        bbox_head=dict(
            type='SMCAHead',
            num_classes=classes,
            embed_dims=dims,
            sync_cls_avg_factor=True,
            loss_cls=dict(
                type='FocalLoss', use_sigmoid=True, gamma=2.0, alpha=0.25, loss_weight=2.0
            ),
            loss_bbox=dict(type='L1Loss', loss_weight=5.0),
            loss_iou=dict(type='GIoULoss', loss_weight=2.0),
        ),
        train_cfg=dict(
            assigner=dict(
                type='HungarianAssigner',
                match_costs=[
                    dict(type='FocalLossCost', weight=2.0),
                    dict(type='BBoxL1Cost', weight=5.0, box_format='xywh'),
                    dict(type='IoUCost', iou_mode='giou', weight=2.0),
                ],
            )
        ),
        test_cfg=dict(max_per_img=10),
    )


def build(cfg: dict) -> torch.nn.Module:
    with DefaultScope.overwrite_default_scope('mmdet'):
        return MODELS.build(ConfigDict(copy.deepcopy(cfg)))


def small_cfg(attn_cfg, **options) -> dict:
    """Return the config of a detector with 32 channels."""
    sizes = dict(dims=32, heads=4, hidden=48, encoders=2, decoders=3, queries=12, classes=3)
    return model_cfg(**dict(sizes, attn_cfg=attn_cfg, **options))


@pytest.fixture
def make():
    """Return a function ``make(attn_cfg, **options)`` that builds an initialised detector."""

    def call(attn_cfg='SoftmaxAttention', **options):
        model = build(small_cfg(attn_cfg, **options))
        model.init_weights()
        return model.eval()

    return call


@pytest.fixture(scope='session', params=['smca_small', 'smca_decoder'])
def released(request, golden):
    """Return recorded tensors and a model with the recorded weights, with 64 or 256 channels."""
    tensors, _ = golden(request.param)
    dims = tensors['in.src'].shape[1]
    sizes = dict(dims=dims, heads=8, hidden=32, encoders=1, decoders=3, queries=10, classes=5)
    model = build(model_cfg(**sizes, attn_cfg='SoftmaxAttention')).eval()
    keys = model.load_state_dict(convert(below(tensors, 'param.'), source='smca'), strict=False)
    assert not keys.unexpected_keys
    assert all(name.startswith(('backbone.', 'neck.')) for name in keys.missing_keys)
    return tensors, model
