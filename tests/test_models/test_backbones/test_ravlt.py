import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mmlinattn.models.backbones import RAVLT
from mmlinattn.models.backbones.ravlt import _block

TINY = dict(embed_dims=(8, 16, 24, 32), depths=(1, 1, 2, 1), num_heads=(1, 2, 3, 4))
LAYOUTS = {
    'released': ('RALA', 'RALA', 'SoftmaxAttention', 'SoftmaxAttention'),
    'all-linear': 'RALA',
    'mixed': (
        dict(type='SoftmaxAttention', lepe=0),
        dict(type='RALA', gate='tanh'),
        'RWGKA',
        'RALA',
    ),
}
BN = dict(type='BN')


def build(layout='released', **kwargs) -> RAVLT:
    return RAVLT(**{**dict(arch=TINY, attn_cfg=LAYOUTS[layout], norm_cfg=BN), **kwargs})


@pytest.mark.parametrize('layout', LAYOUTS)
@pytest.mark.parametrize('size', [(32, 32), (64, 96), (47, 133), (9, 128)])
def test_feature_shapes_and_gradients(layout, size):
    model = build(layout)
    outs = model(torch.randn(2, 3, *size))
    for out, dim, stride in zip(outs, TINY['embed_dims'], (4, 8, 16, 32)):
        assert out.shape == (2, dim, -(-size[0] // stride), -(-size[1] // stride))
        # MMCV's RoIAlign assumes contiguous memory without checking the strides.
        assert out.is_contiguous()
    sum((out**2).mean() for out in outs).backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


def test_out_indices_and_no_out_norm():
    model, full = build(out_indices=(1, 3), out_norm=False).eval(), build().eval()
    model.load_state_dict(full.state_dict(), strict=False)
    image = torch.randn(1, 3, 64, 64)
    outs, normed = model(image), full(image)
    assert len(outs) == 2 and not model.out_norms
    for out, i in zip(outs, (1, 3)):
        norm = full.out_norms[str(i)]
        torch.testing.assert_close(norm(out.permute(0, 2, 3, 1)).permute(0, 3, 1, 2), normed[i])


def test_checkpointing_stores_fewer_activations():
    image = torch.randn(1, 3, 64, 64)
    kept = []
    for with_cp in (False, True):
        model, sizes = build(with_cp=with_cp), []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t, sizes=sizes: sizes.append(t.numel()) or t, lambda t: t
        ):
            model(image)
        kept.append(sum(sizes))
    assert kept[1] < 0.7 * kept[0]


def test_norm_eval_and_frozen_stages():
    model = build(norm_eval=True, frozen_stages=2).train()
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    assert norms and not any(m.training for m in norms)
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    assert {name.split('.')[0] for name in frozen} == {'stem', 'stages', 'downsamples'}
    assert not any(p.requires_grad for p in model.stem.parameters())
    assert [any(p.requires_grad for p in s.parameters()) for s in model.stages] == [
        False, False, True, True,
    ]  # fmt: skip
    # The layer before stage 2 is frozen, the layer after it is not.
    assert [any(p.requires_grad for p in d.parameters()) for d in model.downsamples] == [
        False, True, True,
    ]  # fmt: skip
    model(torch.randn(1, 3, 32, 32))[-1].sum().backward()


def test_weights_of_the_backbone_of_the_base():
    with pytest.raises(ValueError, match="pretrained is 'open-mmlab://resnet50_v1c', which"):
        RAVLT('tiny', pretrained='open-mmlab://resnet50_v1c')


def test_default_norm_is_synchronised():
    assert isinstance(RAVLT(TINY).stem[0].bn, nn.SyncBatchNorm)


def test_initial_weights():
    model = build()
    model.init_weights()
    for name, module in model.named_modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            # Of convolutions: batch norm makes zeros of black images, whose gradients would be inf.
            is_zero = (module.bias == 0).all()
            assert is_zero == isinstance(module, nn.Linear) and module.bias.abs().max() < 0.1, name
            assert module.weight.abs().max() <= 2 and 0.01 < module.weight.std() < 0.03, name


def test_black_images_have_moderate_gradients_from_scratch():
    norms = []
    for images in (torch.randn(2, 3, 64, 64), torch.zeros(2, 3, 64, 64)):
        model = build()
        model.init_weights()
        outs = model.train()(images)
        sum((out * torch.randn_like(out)).mean() for out in outs).backward()
        norms.append(torch.stack([p.grad.norm() for p in model.parameters()]).norm())
    assert norms[1] < 1e3 * norms[0]


def test_pretrained_init_cfg(tmp_path):
    source = build()
    path = str(tmp_path / 'weights.pth')
    torch.save({f'backbone.{k}': v for k, v in source.state_dict().items()}, path)
    init_cfg = dict(type='Pretrained', checkpoint=path, prefix='backbone.')
    model = build(init_cfg=init_cfg)
    model.init_weights()
    torch.testing.assert_close(model.state_dict(), source.state_dict(), rtol=0, atol=0)


def test_drop_path_rises_linearly_over_the_blocks():
    rates = [
        block.drop_path.drop_prob for stage in build(drop_path_rate=0.4).stages for block in stage
    ]
    assert rates == pytest.approx([0, 0.1, 0.2, 0.3, 0.4])


def test_block_equals_the_formula():
    block = _block(8, 1, 3.5, 'SoftmaxAttention', layer_scale_init=1.0, cpe=True).double()
    for parameter in block.parameters():
        nn.init.normal_(parameter)
    for parameter in block.cpe.parameters():
        nn.init.normal_(parameter, std=1e-3)
    x = 1e-3 * torch.randn(1, 6, 8, dtype=torch.float64)  # small, so that the eps of norms matters

    def normed(y, norm):
        return F.layer_norm(y, (8,), norm.weight, norm.bias, 1e-6)

    expected = x + block.cpe(x.mT.reshape(1, 8, 2, 3)).flatten(2).mT
    expected = expected + block.gamma1 * block.attn(normed(expected, block.norm1), (2, 3))
    hidden = F.gelu(block.ffn.fc1(normed(expected, block.norm2)))
    hidden = hidden + block.ffn.dwconv(hidden.mT.reshape(1, 28, 2, 3)).flatten(2).mT
    expected = expected + block.gamma2 * block.ffn.fc2(hidden)
    torch.testing.assert_close(block(x, (2, 3)), expected)


@pytest.mark.parametrize('scope', ['mmdet', 'mmseg', 'mmpretrain'])
def test_builds_in_every_framework_scope_without_a_prefix(scope):
    import importlib

    registry = importlib.import_module(f'{scope}.registry').MODELS
    assert type(registry.build(dict(type='RAVLT', arch=TINY))) is RAVLT


@pytest.mark.parametrize(
    'kwargs, error, message',
    [
        (dict(arch='huge'), ValueError, "'huge'"),
        (dict(arch=dict(depths=(1, 1, 1, 1))), ValueError, "missing keys .*'embed_dims'"),
        (dict(arch=dict(TINY, mlp=4)), ValueError, "unknown keys .*'mlp'"),
        (dict(arch=dict(TINY, depths=(1, 1))), ValueError, r"\['depths'\] must have 4 .*\(1, 1\)"),
        (dict(arch=dict(TINY, num_heads=(1, 3, 3, 4))), ValueError, 'embed_dims=16 .*num_heads=3'),
        (dict(arch=dict(TINY, num_heads=(1, 2, 4, 4))), ValueError,
         'num_heads must be a multiple of 4 .* got 6'),
        (dict(attn_cfg=('RALA',) * 3), ValueError, 'attn_cfg must be one attention, or 4'),
        (dict(attn_cfg=('RALA', 'RALA', 'RALA', 'linear')), KeyError, "'linear' is not reg"),
        (dict(out_indices=(0, 4)), ValueError, r'out_indices .*\(0, 4\)'),
        (dict(out_indices=()), ValueError, 'out_indices'),
        (dict(out_indices=3), ValueError, 'out_indices must be a list .* got 3'),
        (dict(arch=None), ValueError, 'arch must be a name or a dict, got None'),
        (dict(arch=dict(TINY, depths=(1, 0, 1, 1))), ValueError, r"\['depths'\] must be a pos.* 0"),
        (dict(attn_cfg=None), ValueError, 'attn_cfg must be one attention.* got None'),
        (dict(attn_cfg=['RALA', 'RALA', None, 'RALA']), ValueError, 'attn_cfg must be one attent'),
        (dict(drop_path_rate=(0.1, 0.2)), ValueError, 'drop_path_rate .* 0.2'),
        (dict(frozen_stages=5), ValueError, 'frozen_stages .* 5'),
        (dict(drop_path_rate=1.0), ValueError, 'drop_path_rate .* 1.0'),
        (dict(attn_drop=0.1), TypeError, "^RAVLT has no option 'attn_drop'"),
        (dict(attn='RALA'), TypeError, "^RAVLT has no option 'attn'"),
        (dict(frozen_stages=1.0), ValueError, 'frozen_stages .* 1.0'),
        (dict(arch=dict(TINY, depths=None)), ValueError, r"\['depths'\] must have 4 .* got None"),
        (dict(arch=dict(TINY, depths=1.5)), ValueError, r"\['depths'\] must be a pos.* got 1.5"),
        (dict(arch=dict(TINY, depths='1')), ValueError, r"\['depths'\] must have 4 .* got '1'"),
        (dict(arch=dict(TINY, num_heads=(1, 2, 2, '4'))), ValueError,
         r"\['num_heads'\] must be a positive integer, got '4'"),
    ],
)  # fmt: skip
def test_bad_options(kwargs, error, message):
    with pytest.raises(error, match=message):
        build(**kwargs)


@pytest.mark.parametrize(
    'image, error, message',
    [
        (torch.zeros(3, 64, 64), ValueError,
         r'got \(3, 64, 64\): add a batch dimension, x\[None\]'),
        (torch.zeros(1, 3, 8, 64, 64), ValueError,
         r'takes \(B, C, H, W\), got \(1, 3, 8, 64, 64\)$'),
        (torch.zeros(1, 3, 64, 64, dtype=torch.uint8), TypeError, 'of floats, got torch.uint8'),
        (np.zeros((1, 3, 64, 64)), TypeError, 'takes a tensor .* got ndarray'),
        ([torch.zeros(3, 64, 64)], TypeError, 'got a list of 1 images'),
    ],
)  # fmt: skip
def test_other_inputs(image, error, message):
    with pytest.raises(error, match=message):
        build()(image)
