"""Architectures of all backbones: names, parameters, frozen stages."""

import pytest
import torch
from torch import nn

from mmlinattn.models import backbones
from mmlinattn.models.backbones import TransformerBlock
from tests.more_rules import small_options

# Options, tolerance, hidden channels of a classifier of 1,000 classes (None: no classifier, 0: a
# linear one) and millions of parameters by architecture, of papers and released code. A projected
# gate gives Swin-S with RALA 53.7 M.
RALA = dict(attn_cfg=dict(type='RALA', gate='identity'))
LAST, NO_NORM = dict(out_indices=(3,)), dict(out_norm=False)
PARAMETERS = [
    ('ViT', {}, 0.01, 0, dict(b16=86.57, b32=88.22, l16=304.33, h14=632.05)),
    ('ViT', {}, 0.01, 0, {'deit-t': 5.72, 'deit-s': 22.05, 'deit-b': 86.57}),
    ('ViT', {}, 0.06, None, {
        'dinov2-s': 22.06, 'dinov2-b-reg': 86.58, 'dinov2-l': 304.37, 'dinov2-g': 1136.48,
        'dinov3-s': 21.6, 'dinov3-s-plus': 28.7, 'dinov3-b': 85.7, 'dinov3-l': 303.1,
        'dinov3-h-plus': 840.6, 'deit3-s': 21.67, 'clip-b16': 85.8, 'clip-l14': 303.2,
        'siglip-b16': 85.8,
    }),
    ('CvT', dict(out_indices=(2,)), 0.3, 0, {'13': 20.0, '21': 31.6, 'w24': 277}),
    ('ViL', LAST, 0.06, 0, {
        'tiny': 6.7, 'small': 24.6, 'medium': 39.7, 'medium-wide': 39.8, 'base': 55.7,
        'base-wide': 79.0,
    }),
    ('Swin', LAST, 0.01, 0, dict(t=28.29, s=49.61, b=87.77)),
    ('Swin', dict(LAST, **RALA), 0.01, 0, dict(t=28.38, s=49.79)),
    ('MLLA', {}, 5e-7, None, dict(tiny=23.880096, small=42.502944, base=95.216304)),
    ('MLLA', LAST, 5e-7, 0, dict(tiny=24.392200, small=43.015048, base=95.983960)),
    ('HViTTT', {}, 5e-4, None, dict(tiny=28.192, small=53.850, base=93.730)),
    ('ViT', dict(attn_cfg='TTTAttention'), 5e-4, 0, {
        'vittt-t': 6.149, 'vittt-s': 23.799, 'vittt-b': 90.056,
    }),
    ('ViT', dict(attn_cfg='CoreAttention'), 5e-4, None, {
        'veca-s': 21.629, 'veca-s-plus': 28.719, 'veca-b': 85.725, 'veca-l': 303.195,
    }),
    ('MixTransformer', {}, 0.05, None, dict(b0=3.3, b1=13.2, b2=24.2, b3=44.1, b4=60.8, b5=81.4)),
    ('MAViT', NO_NORM, 6e-4, None, dict(tiny=13.345, small=24.039, base=46.689, large=93.559)),
    ('MAViT', NO_NORM, 6e-4, 2048, dict(tiny=16.449, small=27.143, base=49.793)),
    ('MAViT', NO_NORM, 6e-4, 2560, dict(large=97.766)),
]  # fmt: skip
KINDS = [backbones.RAVLT, backbones.Swin, backbones.MixTransformer, backbones.CvT,
         backbones.ViL, backbones.ViT]  # fmt: skip


@pytest.mark.parametrize(('kind', 'options', 'tolerance', 'hidden', 'millions'), PARAMETERS)
def test_parameters(kind, options, tolerance, hidden, millions):
    for arch, expected in millions.items():
        with torch.device('meta'):
            model = getattr(backbones, kind)(arch=arch, **options)
        dims = model.arch['embed_dims']
        channels = dims if isinstance(dims, int) else dims[-1]
        count = sum(value.numel() for value in model.parameters())
        if hidden is not None:  # with a batch norm behind the hidden layer
            count += hidden * (channels + 3) + 1000 * ((hidden or channels) + 1)
        assert abs(count / 1e6 - expected) <= tolerance * (4 if arch == 'w24' else 1), arch


@pytest.mark.parametrize('stages', [1, 2])
@pytest.mark.parametrize(
    'kind', [cls for cls in KINDS if issubclass(cls, backbones.HierarchicalBackbone)]
)
def test_frozen_stages(kind, stages):
    """The first layers, stages and norms of their outputs are frozen and stay in evaluation."""
    model = kind(frozen_stages=stages, **small_options(kind)).train()
    for i in range(model.num_built):
        modules = [part for part in model.stage_parts(i) if isinstance(part, nn.Module)]
        assert modules
        for module in modules:
            learns = {parameter.requires_grad for parameter in module.parameters()}
            assert learns <= {i >= stages} and module.training == (i >= stages)
        assert all(p.requires_grad == (i >= stages) for p in model.stages[i].parameters())


@pytest.mark.parametrize('kind', KINDS)
def test_every_backbone_has_the_common_sizes(kind):
    assert {'small', 'base'} <= {*kind.architectures, *kind.arch_sizes}
    assert {*kind.arch_sizes.values()} <= {*kind.architectures}


def test_an_unknown_name_lists_both_spellings():
    with pytest.raises(ValueError) as error:
        backbones.MixTransformer(arch='b6')
    assert str(error.value) == (
        "MixTransformer: arch must be one of 'b0', 'b1', 'b2', 'b3', 'b4', 'b5', by size 'nano' "
        "(b0), 'tiny' (b1), 'small' (b2), 'base' (b3), 'large' (b4), 'huge' (b5), or a dict, got "
        "'b6'"
    )
    with pytest.raises(ValueError, match=r"RAVLT: arch must be one of 'tiny', .* or a dict, got"):
        backbones.RAVLT(arch='t')


def test_a_misspelt_option_of_a_block():
    """It is not passed on to the attention, which would ignore it."""
    with pytest.raises(TypeError, match="TransformerBlock has no option 'fn'; did you mean ffn"):
        TransformerBlock(16, 2, 4, 'RALA', fn='mix')
    assert TransformerBlock(16, 2, 4, 'RALA', sr_ratio=2).attn.num_heads == 2
