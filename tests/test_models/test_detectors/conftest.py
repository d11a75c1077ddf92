"""Fixtures: a small SMCA detector and recorded cases of the release."""

import copy

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope

from mmlinattn.checkpoints.converters import convert
from tests.families import CONFIGS
from tests.recordings import below

pytest.importorskip('mmdet', reason='SMCA needs MMDetection')

BACKBONE = dict(
    type='RAVLT',
    arch=dict(embed_dims=(8, 8, 16, 16), depths=(1, 1, 1, 1), num_heads=(1, 1, 2, 2)),
    out_indices=(3,),
    norm_cfg=dict(type='BN'),
)


def model_cfg(dims, heads, hidden, encoders, decoders, queries, classes, attn_cfg, **layer):
    """Return the config of the release with other sizes."""
    cfg = Config.fromfile(CONFIGS / '_base_/models/smca_r50.py').model
    sizes = dict(embed_dims=dims, num_heads=heads, feedforward_channels=hidden)
    cfg.num_queries, cfg.backbone, cfg.test_cfg = queries, BACKBONE, dict(max_per_img=10)
    cfg.neck.update(in_channels=[16], out_channels=dims)
    cfg.encoder = dict(num_layers=encoders, layer_cfg=dict(sizes, attn_cfg=attn_cfg))
    cfg.decoder.num_layers = decoders
    cfg.decoder.layer_cfg.update(sizes, **layer)
    cfg.positional_encoding.num_feats = dims // 2
    cfg.bbox_head.update(num_classes=classes, embed_dims=dims)
    return cfg


def build(cfg: dict) -> torch.nn.Module:
    with DefaultScope.overwrite_default_scope('mmdet'):
        return MODELS.build(copy.deepcopy(cfg))


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
