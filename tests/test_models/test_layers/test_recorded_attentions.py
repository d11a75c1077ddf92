"""Attentions compared with recorded outputs and gradients of released code, see tests/golden."""

import pytest
import torch
from torch import nn

from mmlinattn.models.layers import (
    MLP,
    AgentAttention,
    EfficientAttention,
    EnhancedLinearAttention,
    FocusedLinearAttention,
    GatedPositionalAttention,
    InLineAttention,
    LinearAngularAttention,
    LinearAttention,
    NystromAttention,
    PolaFormerAttention,
    TokenLayout,
    VSSDAttention,
    WindowAttention,
    map_to_tokens,
    tokens_to_map,
)
from mmlinattn.models.layers.feature_maps import DPFPFeatures
from tests.recordings import assert_equals_recording, below, load_case


def joined(state, *names):
    """Return weight and bias of one layer that does the work of several."""
    found = {part: [state[f'{name}.{part}'] for name in names] for part in ('weight', 'bias')}
    return {f'in_proj.{part}': torch.cat(tensors) for part, tensors in found.items()}


def renamed(state, **names):
    """Return the weights of these layers by new names: ``renamed(state, new=old)``."""
    return {
        f'{new}{key[len(old) :]}': value
        for new, old in names.items()
        for key, value in state.items()
        if key.startswith(f'{old}.')
    }


@pytest.mark.parametrize('name', ['pvt', 'pvt_padded', 'swin_exp'])
def test_inline(golden, name):
    case, facts = load_case(golden, 'inline', name)

    def ours(state):
        in_proj = joined(state, *(('q', 'kv') if 'q.weight' in state else ('qkv',)))
        return {**in_proj, **renamed(state, proj='proj', local_weights='residual')}

    attn = InLineAttention(16, 2, facts['kwargs'].get('kernel_func', 'identity'))
    assert_equals_recording(attn, case, facts, ours)


@pytest.mark.parametrize('name', ['pvt', 'swin'])
def test_polaformer(golden, name):
    case, facts = load_case(golden, 'polaformer', name)

    def ours(state):
        if name == 'swin':
            weights = joined(state, 'qkvg')
        else:  # queries and gate, keys and values
            weights = joined(state, 'qg', 'kv')
            weights = {k: torch.cat([t[:16], t[32:], t[16:32]]) for k, t in weights.items()}
        position = state['positional_encoding'].unflatten(-1, (2, 8)).transpose(1, 2)
        return {
            **weights, **renamed(state, proj='proj', lepe='dwc'), 'position.embedding': position,
            'feature_map.scale': state['scale'].view(2, 1, 8),
            'feature_map.power': state['power'][0],
        }  # fmt: skip

    assert_equals_recording(PolaFormerAttention(16, 2, map_size=facts['hw']), case, facts, ours)


@pytest.mark.parametrize('name', ['pvt', 'pvt_dense'])
def test_agent(golden, name):
    case, facts = load_case(golden, 'agent', name)
    options = facts['kwargs']
    attn = AgentAttention(
        16, 2, options['agent_num'], map_size=int(options['num_patches'] ** 0.5),
        agent_grid=options.get('downstream_agent_shape'),
    )  # fmt: skip

    def ours(state):
        return {
            **joined(state, 'q', 'kv'), **renamed(state, proj='proj', lepe='dwc'),
            'key_bias_table': state['an_bias'],
            'key_bias_rows': state['ah_bias'][0, ..., 0],
            'key_bias_columns': state['aw_bias'][0, :, :, 0],
            'query_bias_table': state['na_bias'],
            'query_bias_rows': state['ha_bias'][0, :, :, 0].mT,
            'query_bias_columns': state['wa_bias'][0, :, 0].mT,
        }  # fmt: skip

    assert_equals_recording(attn, case, facts, ours)


class VSSDBlock(nn.Module):
    """The released block, of parts of this package."""

    def __init__(self):
        super().__init__()
        self.attn, self.mlp = VSSDAttention(16, 2, state_dims=8), MLP(16, 32)
        self.cpe1, self.cpe2 = (nn.Conv2d(16, 16, 3, padding=1, groups=16) for _ in range(2))
        self.norm1, self.norm2 = nn.LayerNorm(16), nn.LayerNorm(16)

    def forward(self, x, hw):
        x = x + map_to_tokens(self.cpe1(tokens_to_map(x, hw)))
        x = x + self.attn(self.norm1(x), hw)
        x = x + map_to_tokens(self.cpe2(tokens_to_map(x, hw)))
        return x + self.mlp(self.norm2(x))


@pytest.mark.parametrize('name', ['mixer', 'block'])
def test_vssd(golden, name):
    def ours(state):
        names = (k.replace('conv2d', 'conv').replace('out_proj', 'proj') for k in state)
        return dict(zip(names, state.values()))

    layer = VSSDBlock() if name == 'block' else VSSDAttention(16, 2, state_dims=8)
    assert_equals_recording(layer, *load_case(golden, 'vssd', name), ours)


# Recorded without the gradients of parameters


@pytest.fixture
def case(golden):
    """Return a function ``case(name)`` that loads the recorded tensors of a case."""
    return lambda name: below(golden('released_attentions')[0], f'{name}.')


def assert_equals_output(attn, recorded, x, hw, back=lambda t: t, tolerance=1e-11):
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
    attn.load_state_dict({
        **joined(weight, 'qk', 'v'), **renamed(weight, proj='proj'),
        'gates': weight['gating_param'],
        'positions': weight['pos_proj.weight'],  # its bias is the same for all keys
    })  # fmt: skip
    assert_equals_output(attn, recorded, recorded['x'], (4, 4))


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
    assert_equals_output(
        attn, recorded, map_to_tokens(recorded['x']), (4, 5),
        back=lambda t: tokens_to_map(t, (4, 5)), tolerance=1e-5,
    )  # fmt: skip


def test_nystrom_attention_equals_transformers(case):
    recorded = case('nystrom')
    weight = below(recorded, 'weight.')
    attn = NystromAttention(16, 2, num_landmarks=4, lepe=0).double()
    attn.proj = nn.Identity()
    attn.load_state_dict(joined(weight, 'query', 'key', 'value'))
    # Its landmarks are means of four segments of the sequence; here, of the quarters of the map.
    order = torch.arange(16).view(2, 2, 2, 2).transpose(1, 2).flatten()
    assert_equals_output(
        attn, recorded, recorded['x'][:, order.argsort()], (4, 4), back=lambda t: t[:, order]
    )


def test_efficient_attention_equals_linear_attention_transformer(case):
    recorded = case('efficient')
    q, k, v = (recorded[name].requires_grad_() for name in 'qkv')
    attn = EfficientAttention(8, 1).double()
    out = attn.attend(q, k, v, TokenLayout((3, 4), recorded['padding'])) * 8**-0.5
    found = [out, *torch.autograd.grad(out, (q, k, v), recorded['cotangent'])]
    expected = [recorded[name] for name in ('out', 'grad.q', 'grad.k', 'grad.v')]
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_efficient_attention_equals_the_authors_code(case):
    recorded = case('shen')
    weight = below(recorded, 'weight.')
    attn = EfficientAttention(16, 2).double()
    in_proj = joined(weight, 'queries', 'keys', 'values')
    state = {**in_proj, **renamed(weight, proj='reprojection')}
    attn.load_state_dict({name: value.squeeze() for name, value in state.items()})
    x = map_to_tokens(recorded['x'])
    assert_equals_output(attn, recorded, x, (3, 5), back=lambda t: tokens_to_map(t, (3, 5)))


def test_focused_linear_attention_equals_the_authors_code(case):
    """Compare without the learnt position of keys; heads share the released convolution."""
    recorded = case('focused')
    weight = below(recorded, 'weight.')
    assert not weight['positional_encoding'].any()
    attn = FocusedLinearAttention(16, 2).double()
    attn.load_state_dict({
        **renamed(weight, in_proj='qkv', proj='proj'),
        'lepe.weight': weight['dwc.weight'].repeat(2, 1, 1, 1),
        'lepe.bias': weight['dwc.bias'].repeat(2),
        'feature_map.scale': weight['scale'].view(2, 1, 8),
    })  # fmt: skip
    assert_equals_output(attn, recorded, recorded['x'], (4, 4))


def test_linear_angular_attention_equals_the_authors_code(case):
    """Compare on a map with one column, where the convolution is along the sequence."""
    recorded = case('angular')
    weight = below(recorded, 'weight.')
    attn = LinearAngularAttention(16, 2, lepe=9, qkv_bias=False).double()
    kernel = torch.zeros_like(attn.lepe.weight)
    kernel[..., 4] = weight['dconv.weight'][..., 0].repeat_interleave(8, 0)
    lepe = {'lepe.weight': kernel, 'lepe.bias': torch.zeros(16)}
    attn.load_state_dict({**renamed(weight, in_proj='qkv', proj='proj'), **lepe})
    assert_equals_output(attn, recorded, recorded['x'], (14, 1))


def test_window_attention_equals_swin(case):
    recorded = case('window')
    weight = below(recorded, 'weight.')
    attn = WindowAttention(16, 2, window_size=4, shift=True).double()
    state = renamed(weight, in_proj='qkv', proj='proj')
    attn.load_state_dict({**state, 'relative_bias': weight['relative_position_bias_table']})
    x = recorded['x'].flatten(1, 2)
    assert_equals_output(attn, recorded, x, (8, 12), back=lambda t: t.unflatten(1, (8, 12)))


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
