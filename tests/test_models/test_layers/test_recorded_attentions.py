"""Attentions compared with outputs and all gradients that released code gave in float64."""

import pytest
import torch
from torch import nn

from mmlinattn.models.layers import (
    MLP,
    AgentAttention,
    InLineAttention,
    PolaFormerAttention,
    VSSDAttention,
    map_to_tokens,
    tokens_to_map,
)
from tests.recordings import assert_equals_recording, load_case


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
