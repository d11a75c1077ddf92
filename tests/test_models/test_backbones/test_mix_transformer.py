import re

import pytest
import torch
from torch import nn

from mmlinattn.checkpoints.converters import convert
from mmlinattn.models.backbones import MixTransformer
from mmlinattn.models.layers import SpatialReductionAttention
from tests.recordings import below

TINY = dict(embed_dims=(8, 16, 24, 32), depths=(1, 1, 2, 1), num_heads=(1, 2, 3, 4))


def build(**kwargs) -> MixTransformer:
    return MixTransformer(**{'arch': TINY, **kwargs})


@pytest.mark.parametrize('size', [(127, 213), (64, 64)])
def test_equals_mmsegmentation(size):
    mit = pytest.importorskip(
        'mmseg.models.backbones.mit', reason='MMSegmentation comes with the extra "seg"'
    )
    theirs = mit.MixVisionTransformer(
        embed_dims=32, num_layers=[2, 2, 2, 2], num_heads=[1, 2, 5, 8]
    ).eval()
    for parameter in theirs.parameters():  # initial biases and norms are constants
        nn.init.normal_(parameter, 0.5 if parameter.dim() == 1 else 0, 0.05)
    for name, module in theirs.named_modules():
        # NVlabs/SegFormer, mix_transformer.py: PyTorch's default eps in these, 1e-6 in the others.
        if isinstance(module, nn.LayerNorm) and re.search(
            r'layers\.\d\.0\.norm$|attn\.norm$', name
        ):
            module.eps = 1e-5
    ours = MixTransformer('b0').eval()
    ours.load_state_dict(below(convert(theirs.state_dict(), source='mit'), 'backbone.'))
    image = torch.randn(2, 3, *size)
    with torch.no_grad():
        for out, expected in zip(ours(image), theirs(image)):
            assert (out - expected).abs().max() / expected.abs().max() < 1e-6


def test_sr_ratio_of_each_stage():
    model = MixTransformer('b0')
    assert [stage[0].attn.sr_ratio for stage in model.stages] == [8, 4, 2, 1]
    for same in ('mmengine.SpatialReductionAttention', SpatialReductionAttention):
        model = build(attn_cfg=dict(type=same))
        assert [stage[0].attn.sr_ratio for stage in model.stages] == [8, 4, 2, 1]
    model = build(attn_cfg=dict(type='SpatialReductionAttention', sr_ratio=3))
    assert [stage[0].attn.sr_ratio for stage in model.stages] == [3, 3, 3, 3]


def test_initial_weights():
    model = build()
    model.init_weights()
    for name, module in model.named_modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            # Patch embeddings: padding of the batch, tokens of zeros, would have huge gradients.
            starts_random = name.startswith('patch_embeds')
            assert (module.bias != 0).all() if starts_random else (module.bias == 0).all(), name
            assert module.bias.abs().max() < 0.1
        if isinstance(module, nn.Linear):
            assert 0.01 < module.weight.std() < 0.03, name
    # 9 weights per channel, one channel per group.
    dwconv = model.stages[3][0].ffn.dwconv.weight.detach()
    assert dwconv.std() == pytest.approx((2 / 9) ** 0.5, rel=0.1)


@pytest.mark.parametrize(
    'kwargs, error, message',
    [
        (dict(arch=dict(TINY, sr_ratios=(1, 1))), ValueError, r"\['sr_ratios'\] must have 4"),
        (dict(attn_cfg=dict(type='RWGKA', sr_ratio=2)), TypeError, 'sr_ratio'),
    ],
)
def test_bad_options(kwargs, error, message):
    with pytest.raises(error, match=message):
        build(**kwargs)
