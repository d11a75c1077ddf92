"""Released SMCA files; outputs are compared in tests/test_models/test_detectors."""

import pytest
import torch

from mmlinattn.checkpoints.converters import convert, kind_of
from tests.recordings import below

# The first and last categories of COCO, and those on both sides of gaps: class -> id.
CLASS_IDS = {0: 1, 10: 11, 11: 13, 24: 27, 26: 31, 60: 67, 61: 70, 73: 84, 79: 90}


@pytest.fixture
def smca(golden):
    """The recorded transformer and heads, and parts of a ResNet."""
    tensors = below(golden('smca_small')[0], 'param.')
    for name in ('conv1.weight', 'layer2.0.downsample.1.running_var'):
        tensors[f'backbone.0.body.{name}'] = torch.rand(3)
    tensors['input_proj.bias'] = torch.rand(3)
    return tensors


def test_values(smca):
    converted = convert(smca, source='smca')
    assert kind_of(converted) == 'detector' and len(converted) == len(smca)
    pairs = {
        'backbone.0.body.layer2.0.downsample.1.running_var': (
            'backbone.layer2.0.downsample.1.running_var'
        ),
        'input_proj.bias': 'neck.convs.0.conv.bias',
        'transformer.decoder.layers.1.multihead_attn.in_proj_bias': (
            'decoder.layers.1.cross_attn.in_proj.bias'
        ),
        'transformer.decoder.layers.0.norm3.weight': 'decoder.layers.0.norms.2.weight',
        'transformer.decoder.layers.1.point2.weight': 'decoder.layers.1.offset.weight',
        'transformer.decoder.layers.1.point3.weight': 'decoder.layers.1.scale.weight',
        'bbox_embed.layers.1.weight': 'bbox_head.reg_ffn.layers.1.weight',
        'class_embed.weight': 'bbox_head.fc_cls.weight',  # 5 rows: of another data set
    }
    for theirs, ours in pairs.items():
        assert torch.equal(converted[ours], smca[theirs])


@pytest.mark.parametrize('part', ['weight', 'bias'])
def test_class_rows_are_those_of_the_category_ids(smca, part):
    smca[f'class_embed.{part}'] = torch.rand(92, 4)
    rows = convert(smca, source='smca')[f'bbox_head.fc_cls.{part}']
    assert len(rows) == 80
    for ours, theirs in CLASS_IDS.items():
        assert torch.equal(rows[ours], smca[f'class_embed.{part}'][theirs])
