import math
import re

import pytest
import torch
from torch import nn

from mmlinattn.checkpoints import convert
from mmlinattn.models.backbones import MixTransformer
from mmlinattn.models.backbones.mix_transformer import ARCHITECTURES
from mmlinattn.models.layers import SpatialReductionAttention
from tests.sizes import some

TINY = dict(embed_dims=(8, 16, 24, 32), depths=(1, 1, 2, 1), num_heads=(1, 2, 3, 4))
ATTENTIONS = {
    'own': 'SpatialReductionAttention',
    'rwgka': dict(type='RWGKA', num_anchors=8),
    'rwgkp': dict(type='RWGKP', num_anchors=8),
    'rala': dict(type='RALA', rotary=False),
    'mixed': (
        'RWGKA',
        dict(type='RWGKP', steps=2),
        'SpatialReductionAttention',
        'SoftmaxAttention',
    ),
}


def build(attention='own', **kwargs) -> MixTransformer:
    return MixTransformer(**{**dict(arch=TINY, attn_cfg=ATTENTIONS[attention]), **kwargs})


@pytest.mark.parametrize('attention', ATTENTIONS)
@pytest.mark.parametrize('size', [(64, 96), (47, 133), (5, 1)])
def test_feature_shapes_and_gradients(attention, size):
    model = build(attention)
    outs = model(torch.randn(2, 3, *size))
    for out, dim, stride in zip(outs, TINY['embed_dims'], (4, 8, 16, 32)):
        assert out.shape == (2, dim, *(math.ceil(side / stride) for side in size))
        assert out.is_contiguous()
    sum((out**2).mean() for out in outs).backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


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
    weights = convert(theirs.state_dict(), source='mit')
    ours.load_state_dict({name[len('backbone.') :]: w for name, w in weights.items()})
    image = torch.randn(2, 3, *size)
    with torch.no_grad():
        for out, expected in zip(ours(image), theirs(image)):
            assert (out - expected).abs().max() / expected.abs().max() < 1e-6


def test_eps_of_norms_are_those_of_the_release():
    for name, module in build().named_modules():
        if isinstance(module, nn.LayerNorm):
            of_embedding_or_keys = 'patch_embeds' in name or name.endswith('attn.norm')
            assert module.eps == (1e-5 if of_embedding_or_keys else 1e-6), name


@pytest.mark.long
@pytest.mark.parametrize('attention', some(['rwgka', 'own', 'rwgkp']))
def test_compiles_without_graph_breaks(attention):
    model = build(attention, arch=dict(TINY, depths=(1, 1, 1, 1))).eval()
    image = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        compiled = torch.compile(model, fullgraph=True, backend='aot_eager')(image)
        for a, b in zip(compiled, model(image)):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('attention', ['own', 'rwgka', 'rwgkp'])
def test_onnx_export_runs_the_same(attention, tmp_path):
    onnx = pytest.importorskip('onnx', reason='onnx comes with the extra "test"')
    from onnx.reference import ReferenceEvaluator

    model = build(attention).eval()
    image = torch.randn(1, 3, 64, 64)
    path = tmp_path / 'mit.onnx'
    torch.onnx.export(model, (image,), path, opset_version=17, input_names=['image'], dynamo=False)
    outs = ReferenceEvaluator(onnx.load(path)).run(None, {'image': image.numpy()})
    for a, b in zip(outs, model(image)):
        torch.testing.assert_close(torch.from_numpy(a), b.detach(), rtol=1e-3, atol=1e-4)


def test_sr_ratio_of_each_stage():
    model = MixTransformer('b0')
    assert [stage[0].attn.sr_ratio for stage in model.stages] == [8, 4, 2, 1]
    for same in ('mmengine.SpatialReductionAttention', SpatialReductionAttention):
        model = build(attn_cfg=dict(type=same))
        assert [stage[0].attn.sr_ratio for stage in model.stages] == [8, 4, 2, 1]
    model = build(attn_cfg=dict(type='SpatialReductionAttention', sr_ratio=3))
    assert [stage[0].attn.sr_ratio for stage in model.stages] == [3, 3, 3, 3]


def test_parameters_of_the_release():
    depths = [sum(ARCHITECTURES[f'b{i}']['depths']) for i in range(6)]
    assert depths == [8, 8, 16, 28, 41, 52]
    with torch.device('meta'):
        sizes = [sum(p.numel() for p in MixTransformer(f'b{i}').parameters()) for i in range(6)]
    assert [round(size / 1e6, 1) for size in sizes] == [3.3, 13.2, 24.2, 44.1, 60.8, 81.4]


def test_initial_weights():
    model = build()
    model.init_weights()
    for name, module in model.named_modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            assert (module.bias == 0).all(), name
        if isinstance(module, nn.Linear):
            assert 0.01 < module.weight.std() < 0.03, name
    # 9 weights per channel, one channel per group.
    dwconv = model.stages[3][0].ffn.dwconv.weight.detach()
    assert dwconv.std() == pytest.approx((2 / 9) ** 0.5, rel=0.1)


def test_frozen_stages():
    model = build(frozen_stages=2).train()
    for modules in (model.patch_embeds, model.stages, model.norms):
        learns = [any(p.requires_grad for p in m.parameters()) for m in modules]
        assert learns == [False, False, True, True]
    assert not model.stages[1].training and model.stages[2].training
    model(torch.randn(1, 3, 64, 64))[-1].sum().backward()


@pytest.mark.parametrize(
    'kwargs, error, message',
    [
        (dict(arch='b6'), ValueError, "arch must be one of .*'b5'.* got 'b6'"),
        (dict(arch=dict(depths=(1, 1, 1, 1))), ValueError, "missing keys .*'embed_dims'"),
        (dict(arch=dict(TINY, sr_ratios=(1, 1))), ValueError, r"\['sr_ratios'\] must have 4"),
        (
            dict(attn_cfg=('RWGKA',) * 3),
            ValueError,
            'attn_cfg must be one attention, or 4: one per stage',
        ),
        (dict(attn_cfg='RWGK'), KeyError, "'RWGK' is not registered"),
        (dict(attn_cfg=dict(type='RWGKA', sr_ratio=2)), TypeError, 'sr_ratio'),
        (dict(out_indices=(4,)), ValueError, 'out_indices'),
        (dict(frozen_stages=-2), ValueError, 'frozen_stages'),
    ],
)
def test_bad_options(kwargs, error, message):
    with pytest.raises(error, match=message):
        build(**kwargs)
