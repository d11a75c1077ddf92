"""Wrong backbones: each must break the rule that is about its fault."""

import pytest
import torch
from mmengine.model import ModuleList
from torch import nn

from mmlinattn.models.backbones import HierarchicalBackbone
from mmlinattn.models.backbones.transformer_block import TransformerBlock
from mmlinattn.testing import BACKBONE_RULES, check_backbone
from tests import more_rules


class Sound(HierarchicalBackbone):
    """Four stages of plain blocks after patch embeddings."""

    arch_defaults = dict(num_heads=1, mlp_ratios=2, drop_path_rate=0.0)

    def __init__(self, arch, attn_cfg, **kwargs):
        super().__init__(arch, attn_cfg, **kwargs)
        self.stages, self.patches, channels = ModuleList(), ModuleList(), 3
        for i, dim in enumerate(self.arch['embed_dims'][: self.num_built]):
            side = 2 if i else 4
            self.patches.append(nn.Conv2d(channels, dim, side, stride=side))
            self.build_stage(i, TransformerBlock, ffn='mix')
            channels = dim
        self.finish()

    def downsample_layer(self, i):
        return self.patches[i]


class NotContiguous(Sound):
    def format_output(self, *args):
        return super().format_output(*args).contiguous(memory_format=torch.channels_last)


class UnusedLayer(Sound):
    def finish(self):
        super().finish()
        self.head = nn.Linear(2, 2)


class BatchMean(Sound):
    def stage_norm(self, i, tokens):
        return tokens - 0.1 * tokens.mean(0)


class StateOutside(Sound):
    def finish(self):
        super().finish()
        self.shift = torch.randn(())

    def stage_norm(self, i, tokens):
        return tokens + self.shift


class ZeroBias(Sound):
    def init_layer(self, layer):
        super().init_layer(layer)
        nn.init.zeros_(layer.bias)


class Standardised(Sound):
    def forward(self, x):
        return super().forward(x / x.std((1, 2, 3), keepdim=True))


class ZeroOutputs(ZeroBias):
    def stage_norm(self, i, tokens):
        return nn.functional.normalize(tokens, dim=-1, eps=1e-30)


BROKEN = [
    (NotContiguous, 'outputs'), (UnusedLayer, 'parameters_learn'),
    (BatchMean, 'images_are_independent'), (StateOutside, 'weights'),
    (ZeroBias, 'padded_image'), (Standardised, 'padded_image'),
    (ZeroOutputs, 'padded_image'),
]  # fmt: skip


SMALL = dict(arch=more_rules.SMALL)


def test_a_sound_backbone_keeps_all_rules():
    check_backbone(Sound, ['RWGKA', 'WindowAttention'], **SMALL)
    more_rules.check_backbone(Sound, ['RWGKA', 'WindowAttention'], **SMALL)


@pytest.mark.parametrize('cls, rule', BROKEN, ids=[cls.__name__ for cls, _ in BROKEN])
def test_broken_backbones_are_caught(cls, rule):
    with pytest.raises(AssertionError) as error:
        check_backbone(cls, ['HydraAttention' if cls is ZeroBias else 'RWGKA'], **SMALL)
    statement = ' '.join(BACKBONE_RULES[rule].__doc__.split())
    assert f'{rule}: {statement}' in str(error.value)


def test_a_missing_size_is_named():
    class WithGroups(Sound):
        arch_required = ('embed_dims', 'depths', 'groups')

    with pytest.raises(AssertionError, match=r"(?s)constructor: .*missing keys \['groups'\]"):
        check_backbone(WithGroups, ['RALA'], **SMALL)
