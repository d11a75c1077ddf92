"""Attentions compared with outputs and all gradients that released code gave in float64."""

import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

from mmlinattn.models.layers import (
    MLP,
    AgentAttention,
    InLineAttention,
    PolaFormerAttention,
    VSSDAttention,
    map_to_tokens,
    tokens_to_map,
)


def load_case(golden, file, name):
    """Return the tensors of a case, its released weights, which need gradients, and its facts."""
    tensors, metadata = golden(file)
    case = {k[len(name) + 1 :]: v for k, v in tensors.items() if k.startswith(f'{name}.')}
    state = {k[6:]: v.requires_grad_() for k, v in case.items() if k.startswith('state.')}
    return case, state, json.loads(metadata['cases'])[name]


def assert_equals_recording(case, state, compute):
    """Compare outputs and the gradients of x and of all released weights of real tokens."""
    x, mask = case['in.x'].requires_grad_(), case.get('in.key_padding_mask')
    out = compute(x, mask)
    cotangent = case['in.cotangent']
    if mask is not None:
        out = out.masked_fill(mask[..., None], 0)
    torch.testing.assert_close(out, case['out'], rtol=1e-10, atol=1e-10)
    inputs = dict(x=x, **{f'state.{k}': v for k, v in state.items()})
    gradients = torch.autograd.grad((out * cotangent).sum(), list(inputs.values()))
    for name, gradient in zip(inputs, gradients):
        wanted = case[f'grad.{name}']
        torch.testing.assert_close(gradient, wanted, rtol=1e-9, atol=1e-9, msg=name)


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
        if key == old or key.startswith(old.rstrip('.') + '.')
    }


@pytest.mark.parametrize('name', ['pvt', 'pvt_padded', 'swin_exp'])
def test_inline(golden, name):
    case, state, facts = load_case(golden, 'inline', name)
    attn = InLineAttention(16, 2, facts['kwargs'].get('kernel_func', 'identity')).double()
    weights = {
        **(joined(state, 'q', 'kv') if 'q.weight' in state else joined(state, 'qkv')),
        **renamed(state, proj='proj', local_weights='residual'),
    }
    assert_equals_recording(
        case, state, lambda x, mask: functional_call(attn, weights, (x, facts['hw'], None, mask))
    )


@pytest.mark.parametrize('name', ['pvt', 'swin'])
def test_polaformer(golden, name):
    case, state, facts = load_case(golden, 'polaformer', name)
    attn = PolaFormerAttention(16, 2, map_size=facts['hw']).double()
    if name == 'swin':
        weights = joined(state, 'qkvg')
    else:  # queries and gate, keys and values
        weights = {
            k: torch.cat([t[:16], t[32:], t[16:32]]) for k, t in joined(state, 'qg', 'kv').items()
        }
    weights |= renamed(state, proj='proj', lepe='dwc')
    weights['feature_map.scale'] = state['scale'].view(2, 1, 8)
    weights['feature_map.power'] = state['power'][0]
    weights['position.embedding'] = (
        state['positional_encoding'].unflatten(-1, (2, 8)).transpose(1, 2)
    )
    assert_equals_recording(
        case, state, lambda x, mask: functional_call(attn, weights, (x, facts['hw']))
    )


@pytest.mark.parametrize('name', ['pvt', 'pvt_dense'])
def test_agent(golden, name):
    case, state, facts = load_case(golden, 'agent', name)
    options = facts['kwargs']
    attn = AgentAttention(
        16, 2, options['agent_num'], map_size=int(options['num_patches'] ** 0.5),
        agent_grid=options.get('downstream_agent_shape'),
    ).double()  # fmt: skip
    weights = {**joined(state, 'q', 'kv'), **renamed(state, proj='proj', lepe='dwc')}
    weights |= {
        'key_bias_table': state['an_bias'],
        'key_bias_rows': state['ah_bias'][0, ..., 0],
        'key_bias_columns': state['aw_bias'][0, :, :, 0],
        'query_bias_table': state['na_bias'],
        'query_bias_rows': state['ha_bias'][0, :, :, 0].mT,
        'query_bias_columns': state['wa_bias'][0, :, 0].mT,
    }
    assert_equals_recording(
        case, state, lambda x, mask: functional_call(attn, weights, (x, facts['hw']))
    )


def test_vssd_mixer(golden):
    case, state, facts = load_case(golden, 'vssd', 'mixer')
    attn = VSSDAttention(16, 2, state_dims=8).double()
    weights = vssd_weights(state)
    assert_equals_recording(
        case, state, lambda x, mask: functional_call(attn, weights, (x, facts['hw']))
    )


def vssd_weights(state, prefix=''):
    names = dict(in_proj='in_proj', conv='conv2d', dt_bias='dt_bias', A_log='A_log', D='D')
    names |= dict(norm='norm', proj='out_proj')
    return renamed(state, **{new: prefix + old for new, old in names.items()})


def test_vssd_block(golden):
    """Build the released block from parts of this package."""
    case, state, facts = load_case(golden, 'vssd', 'block')
    attn, mlp = VSSDAttention(16, 2, state_dims=8).double(), MLP(16, 32).double()
    conv = nn.Conv2d(16, 16, 3, padding=1, groups=16).double()
    mixer, ffn = vssd_weights(state, 'attn.'), renamed(state, fc1='mlp.fc1', fc2='mlp.fc2')

    def position(x, i):
        maps = functional_call(
            conv, renamed(state, **{'': f'cpe{i}.'}), tokens_to_map(x, facts['hw'])
        )
        return x + map_to_tokens(maps)

    def norm(x, i):
        return F.layer_norm(x, (16,), state[f'norm{i}.weight'], state[f'norm{i}.bias'])

    def block(x, mask):
        x = position(x, 1)
        x = position(x + functional_call(attn, mixer, (norm(x, 1), facts['hw'])), 2)
        return x + functional_call(mlp, ffn, norm(x, 2))

    assert_equals_recording(case, state, block)
