"""The decode head of the SegFormer release: layers and initial weights."""

import math

import pytest
import torch

pytest.importorskip('mmseg', reason='MMSegmentation comes with the extra "seg"')
from mmengine.registry import MODELS, DefaultScope
from mmseg.models.decode_heads import SegformerHead

OPTIONS = dict(
    in_channels=[32, 64, 160, 256], in_index=[0, 1, 2, 3], channels=256, num_classes=19,
    dropout_ratio=0.1, norm_cfg=dict(type='SyncBN', requires_grad=True),
)  # fmt: skip


@pytest.fixture
def head():
    with DefaultScope.overwrite_default_scope('mmseg'):  # of its loss
        head = MODELS.build(dict(type='mmlinattn.models.decode_heads.AllMLPHead', **OPTIONS))
    head.init_weights()
    return head


def test_norm_and_activation_only_in_the_fusion(head):
    kinds = [type(m).__name__ for m in head.modules() if not [*m.children()]]
    layers = ['CrossEntropyLoss', 'Conv2d', 'Dropout2d'] + ['Conv2d'] * 4
    assert sorted(kinds) == sorted([*layers, 'Conv2d', 'SyncBatchNorm', 'ReLU'])
    # Linear layers with bias, fusion without bias and with two parameters a channel, classifier.
    fusion = 4 * 256 * 256 + 2 * 256
    expected = sum(c * 256 + 256 for c in OPTIONS['in_channels']) + fusion + 256 * 19 + 19
    assert sum(p.numel() for p in head.parameters()) == expected


def test_starts_as_torch_does(head):
    """Uniform in +-1 / sqrt(fan-in): a standard deviation of 1 / sqrt(3 fan-in)."""
    for conv in (*head.convs, head.conv_seg):
        bound = 1 / math.sqrt(conv.in_channels)
        assert 0.9 * bound < conv.weight.abs().max() <= bound
        assert conv.weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05)
        assert 0.5 * bound < conv.bias.abs().max() <= bound
    # MMSegmentation's head starts its classifier smaller.
    other = SegformerHead(**OPTIONS)
    other.init_weights()
    assert other.conv_seg.weight.std().item() == pytest.approx(0.01, rel=0.1)
    # The fusion starts by the normal distribution of Kaiming over the fan-out, for ReLU.
    std = head.fusion_conv.conv.weight.std().item()
    assert std == pytest.approx(math.sqrt(2 / 256), rel=0.02)


def test_a_given_start_is_that_of_every_convolution():
    torch.manual_seed(0)
    start = dict(type='Xavier', layer='Conv2d')
    options = dict(in_channels=[64, 128], in_index=[0, 1], channels=256, num_classes=19)
    config = dict(type='mmlinattn.models.decode_heads.AllMLPHead', **options)
    with DefaultScope.overwrite_default_scope('mmseg'):
        head = MODELS.build(dict(config, norm_cfg=dict(type='BN'), init_cfg=start))
    head.init_weights()
    convs = [m for m in head.modules() if isinstance(m, torch.nn.Conv2d)]
    assert len(convs) == 4
    for conv in convs:
        fan = conv.in_channels + conv.out_channels
        assert float(conv.weight.std()) == pytest.approx((2 / fan) ** 0.5, rel=0.05)
