"""Swin compared with the frameworks; parameters, other attentions."""

from importlib import import_module

import pytest
import torch

from mmlinattn.checkpoints.converters import convert
from mmlinattn.models.backbones import Swin
from tests.recordings import assert_near, below

TINY = dict(embed_dims=(8, 16, 32, 64), depths=(2, 2, 3, 2), num_heads=(1, 2, 4, 8))


def build(arch=TINY, **kwargs) -> Swin:
    return Swin(arch, **kwargs)


def reference_model(package: str, **kwargs):
    models = pytest.importorskip(f'{package}.models', reason=f'compares with {package}')
    if package == 'mmpretrain':
        arch = dict(embed_dims=8, depths=TINY['depths'], num_heads=TINY['num_heads'])
        # MMPretrain adds a norm to the returned outputs.
        model = models.SwinTransformer(arch, img_size=96, out_indices=(0, 1, 2, 3), **kwargs)
    else:
        swin = import_module(f'{package}.models.backbones.swin').SwinTransformer
        model = swin(embed_dims=8, depths=TINY['depths'], num_heads=TINY['num_heads'], **kwargs)
    model.eval()
    for value in model.parameters():
        torch.nn.init.normal_(value, std=0.2)
    return model


# Odd maps that windows do not divide: 27 x 37 patches and 14 x 19, 7 x 10, 4 x 5.
@pytest.mark.parametrize('package', ['mmdet', 'mmseg', 'mmpretrain'])
@pytest.mark.parametrize('size, window', [((106, 147), 3), ((128, 96), 2)])
def test_equals_openmmlab(package, size, window):
    options = dict(window_size=window)
    if package == 'mmpretrain':
        options = dict(window_size=window, pad_small_map=True)
    released, model = reference_model(package, **options), build(window_size=window).eval()
    weights = {f'backbone.{name}': value for name, value in released.state_dict().items()}
    converted = convert(weights, source='swin')
    last = {name for name in converted if 'out_norms' in name}
    assert len(last) == 8
    model.load_state_dict(below(converted, 'backbone.'))
    image = torch.randn(2, 3, *size)
    with torch.no_grad():
        outs = model(image)
        assert_near(outs, released(image))
    assert len(outs) == 4 and all(out.is_contiguous() for out in outs)


def test_window_larger_than_the_map_equals_a_window_of_its_size():
    """Test that such a window is not shifted."""
    model, image = build().eval(), torch.randn(1, 3, 20, 24)  # 5 x 6 patches
    small = build(window_size=6).eval()
    state = model.state_dict()
    for name, value in state.items():
        if 'relative_bias' in name:  # 13 x 13 offsets, of which 11 x 11 occur
            grid = value.unflatten(0, (13, 13))[1:-1, 1:-1]
            state[name] = grid.flatten(0, 1)
    small.load_state_dict(state)
    with torch.no_grad():
        torch.testing.assert_close(model(image), small(image))


def test_only_window_attention_is_shifted():
    model = build()
    shifts = [[block.attn.shift for block in stage] for stage in model.stages]
    assert shifts == [[False, True], [False, True], [False, True, False], [False, True]]
    swapped = build(attn_cfg=['WindowAttention', 'RALA', 'RWGKP', 'SoftmaxAttention'])
    assert not any(hasattr(block.attn, 'shift') for stage in swapped.stages[1:] for block in stage)
    assert [tuple(out.shape[1:]) for out in swapped(torch.randn(1, 3, 50, 70))] == [
        (8, 13, 18), (16, 7, 9), (32, 4, 5), (64, 2, 3),
    ]  # fmt: skip


def test_initial_weights_equal_mmdetection():
    """Test linear layers (truncated normal) and the patch convolution (torch's default)."""
    model = Swin('t', out_indices=(1,)).requires_grad_(False)
    model.init_weights()
    conv = model.patch_embed.proj  # 3 x 4 x 4 inputs: uniform up to 48^-0.5
    assert conv.weight.std() == pytest.approx((3 * 48) ** -0.5, rel=0.05)
    assert 0.95 * 48**-0.5 < conv.bias.abs().max() < 48**-0.5
    for linear in (model.merges[0].reduction, model.stages[1][0].ffn.fc1):
        assert linear.weight.std() == pytest.approx(0.02, rel=0.05)


def test_a_class_token_that_it_does_not_have():
    with pytest.raises(ValueError, match="Swin has no class token for out_type='cls_token'"):
        build(out_type='cls_token')


def test_feed_forward_layers_differ_by_stage():
    model = build(ffn=['mix', 'mlp', 'mlp', 'mix'])
    assert [{block.with_conv for block in stage} for stage in model.stages] == [
        {True}, {False}, {False}, {True},
    ]  # fmt: skip
    with pytest.raises(ValueError, match=r"one per stage; got \['mix'\]"):
        build(ffn=['mix'])
