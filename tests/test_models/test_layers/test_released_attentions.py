"""Attentions compared with recorded outputs and gradients of other code, see tests/golden."""

import pytest
import torch

from mmlinattn.models.layers import (
    EfficientAttention,
    EnhancedLinearAttention,
    FocusedLinearAttention,
    GatedPositionalAttention,
    LinearAngularAttention,
    LinearAttention,
    NystromAttention,
    TokenLayout,
    WindowAttention,
    map_to_tokens,
    tokens_to_map,
)
from mmlinattn.models.layers.feature_maps import DPFPFeatures
from tests.recordings import below


@pytest.fixture
def case(golden):
    """Return a function ``case(name)`` that loads the recorded tensors of a case."""
    return lambda name: below(golden('released_attentions')[0], f'{name}.')


def assert_equals_recording(attn, recorded, x, hw, back=lambda t: t, tolerance=1e-11):
    """Compare outputs and input gradients; ``back`` converts tokens to the recorded layout."""
    x = x.clone().requires_grad_()
    out = back(attn(x, hw))
    torch.testing.assert_close(out, recorded['out'], rtol=tolerance, atol=tolerance)
    (grad,) = torch.autograd.grad(out, x, recorded['cotangent'])
    torch.testing.assert_close(back(grad), recorded['grad.x'], rtol=tolerance, atol=tolerance)


def test_gated_positional_attention_equals_convit(case):
    recorded = case('gpsa')
    weight = below(recorded, 'weight.')
    attn = GatedPositionalAttention(16, 4).double()
    start = attn.positions.detach().double()
    torch.testing.assert_close(start, recorded['local_init'])
    attn.load_state_dict(
        {
            'in_proj.weight': torch.cat([weight['qk.weight'], weight['v.weight']]),
            'in_proj.bias': torch.cat([weight['qk.bias'], weight['v.bias']]),
            'proj.weight': weight['proj.weight'],
            'proj.bias': weight['proj.bias'],
            'gates': weight['gating_param'],
            'positions': weight['pos_proj.weight'],  # its bias is the same for all keys
        }
    )
    assert_equals_recording(attn, recorded, recorded['x'], (4, 4))


def test_enhanced_linear_attention_equals_efficientvit(case):
    recorded = case('lite_mla')
    weight = below(recorded, 'weight.')
    attn = EnhancedLinearAttention(16, 2, scales=(3, 5), eps=1e-5, qkv_bias=False).double()

    def ordered(t):
        """Reorder channels from (heads, 3, d) to (3, heads, d)."""
        return t.unflatten(0, (2, 3, 8)).transpose(0, 1).flatten(0, 2)

    state = {
        'in_proj.weight': ordered(weight['qkv.conv.weight']).flatten(1),
        'proj.weight': weight['proj.conv.weight'].flatten(1),
        'proj.bias': weight['proj.conv.bias'],
    }
    for i in range(2):
        for j in range(2):
            state[f'aggregations.{i}.{j}.weight'] = ordered(weight[f'aggreg.{i}.{j}.weight'])
    attn.load_state_dict(state)
    # The release computes the attention in float32.
    assert_equals_recording(
        attn, recorded, map_to_tokens(recorded['x']), (4, 5),
        back=lambda t: tokens_to_map(t, (4, 5)), tolerance=1e-5,
    )  # fmt: skip


def test_nystrom_attention_equals_transformers(case):
    recorded = case('nystrom')
    weight = below(recorded, 'weight.')
    attn = NystromAttention(16, 2, num_landmarks=4, lepe=0).double()
    for name in ('weight', 'bias'):
        parts = [weight[f'{part}.{name}'] for part in ('query', 'key', 'value')]
        getattr(attn.in_proj, name).data = torch.cat(parts)
    attn.proj = torch.nn.Identity()
    # Its landmarks are means of four segments of the sequence; here, of the quarters of the map.
    order = torch.arange(16).view(2, 2, 2, 2).transpose(1, 2).flatten()
    assert_equals_recording(
        attn, recorded, recorded['x'][:, order.argsort()], (4, 4), back=lambda t: t[:, order]
    )


def test_efficient_attention_equals_linear_attention_transformer(case):
    recorded = case('efficient')
    q, k, v = (recorded[name].requires_grad_() for name in 'qkv')
    attn = EfficientAttention(8, 1).double()
    out = attn.attend(q, k, v, TokenLayout((3, 4), recorded['padding'])) * 8**-0.5
    torch.testing.assert_close(out, recorded['out'], rtol=1e-10, atol=1e-10)
    gradients = torch.autograd.grad(out, (q, k, v), recorded['cotangent'])
    for name, gradient in zip('qkv', gradients):
        torch.testing.assert_close(gradient, recorded[f'grad.{name}'], rtol=1e-10, atol=1e-10)


def test_efficient_attention_equals_the_authors_code(case):
    recorded = case('shen')
    weight = below(recorded, 'weight.')
    attn = EfficientAttention(16, 2).double()
    for name in ('weight', 'bias'):
        parts = [weight[f'{part}.{name}'] for part in ('queries', 'keys', 'values')]
        getattr(attn.in_proj, name).data = torch.cat(parts).squeeze()
        getattr(attn.proj, name).data = weight[f'reprojection.{name}'].squeeze()
    x = map_to_tokens(recorded['x'])
    assert_equals_recording(attn, recorded, x, (3, 5), back=lambda t: tokens_to_map(t, (3, 5)))


def test_focused_linear_attention_equals_the_authors_code(case):
    """Compare without the learnt position of keys; heads share the released convolution."""
    recorded = case('focused')
    weight = below(recorded, 'weight.')
    assert not weight['positional_encoding'].any()
    attn = FocusedLinearAttention(16, 2).double()
    attn.load_state_dict(
        {
            'in_proj.weight': weight['qkv.weight'],
            'in_proj.bias': weight['qkv.bias'],
            'proj.weight': weight['proj.weight'],
            'proj.bias': weight['proj.bias'],
            'lepe.weight': weight['dwc.weight'].repeat(2, 1, 1, 1),
            'lepe.bias': weight['dwc.bias'].repeat(2),
            'feature_map.scale': weight['scale'].view(2, 1, 8),
        }
    )
    assert_equals_recording(attn, recorded, recorded['x'], (4, 4))


def test_linear_angular_attention_equals_the_authors_code(case):
    """Compare on a map with one column, where the convolution is along the sequence."""
    recorded = case('angular')
    weight = below(recorded, 'weight.')
    attn = LinearAngularAttention(16, 2, lepe=9, qkv_bias=False).double()
    kernel = torch.zeros_like(attn.lepe.weight)
    kernel[..., 4] = weight['dconv.weight'][..., 0].repeat_interleave(8, 0)
    attn.load_state_dict(
        {
            'in_proj.weight': weight['qkv.weight'],
            'proj.weight': weight['proj.weight'],
            'proj.bias': weight['proj.bias'],
            'lepe.weight': kernel,
            'lepe.bias': torch.zeros(16),
        }
    )
    assert_equals_recording(attn, recorded, recorded['x'], (14, 1))


def test_window_attention_equals_swin(case):
    recorded = case('window')
    weight = below(recorded, 'weight.')
    attn = WindowAttention(16, 2, window_size=4, shift=True).double()
    names = {'qkv': 'in_proj', 'relative_position_bias_table': 'relative_bias'}
    attn.load_state_dict(
        {'.'.join(names.get(part, part) for part in k.split('.')): v for k, v in weight.items()}
    )
    x = recorded['x'].flatten(1, 2)
    assert_equals_recording(attn, recorded, x, (8, 12), back=lambda t: t.unflatten(1, (8, 12)))


def test_performer_features_equal_performer_pytorch(case):
    """Compare attention outputs, without the eps that either adds to the features."""
    recorded = case('performer')
    features = dict(type='PerformerFeatures', num_features=12, eps=0)
    attn = LinearAttention(16, 2, features, eps=0).double()
    attn.feature_map.directions.copy_(recorded['weight.directions'])
    qkv = recorded['x'].requires_grad_()
    out = attn.attend(*qkv, TokenLayout((2, 5)))
    torch.testing.assert_close(out, recorded['out'], rtol=1e-10, atol=1e-10)
    (grad,) = torch.autograd.grad(out, qkv, recorded['cotangent'])
    torch.testing.assert_close(grad, recorded['grad.x'], rtol=1e-10, atol=1e-10)


def test_dpfp_features_equal_flash_linear_attention(case):
    recorded = case('dpfp')
    x = recorded['x'].requires_grad_()
    out = DPFPFeatures(8, 2, order=3).features(x)
    torch.testing.assert_close(out, recorded['out'])
    (grad,) = torch.autograd.grad(out, x, recorded['cotangent'])
    torch.testing.assert_close(grad, recorded['grad.x'])
