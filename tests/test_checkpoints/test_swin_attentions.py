"""Released weights of Swin with a linear attention, on recorded layers of the releases."""

import pytest
import torch

from mmlinattn.checkpoints import CheckpointError
from mmlinattn.checkpoints.converters import convert
from mmlinattn.models.backbones import Swin
from mmlinattn.models.layers import build_attention
from tests.recordings import below

THEIRS, OURS = 'layers.0.blocks.1.attn.', 'backbone.stages.0.1.attn.'
CASES = {
    'inline.swin_exp': dict(type='InLineAttention', feature_map='exp'),
    'polaformer.swin': dict(type='PolaFormerAttention', map_size=4),
    'agent.pvt_dense': dict(type='AgentAttention', num_agents=4, map_size=4, agent_grid=3),
    'released_attentions.focused': dict(
        type='FocusedLinearAttention', position=dict(type='LearnedKeyPosition', map_size=4)
    ),
}
SHAPES = {'inline.swin_exp': (5, 5), 'agent.pvt_dense': (6, 9)}


def recorded(golden, name):
    """Return the released weights of a layer under the names of Swin, its input and output."""
    file, _, case = name.partition('.')
    tensors = below(golden(file)[0], f'{case}.')
    state = below(tensors, 'weight.' if file == 'released_attentions' else 'state.')
    for part in ('weight', 'bias') if 'kv.weight' in state else ():  # of PVT
        state[f'qkv.{part}'] = torch.cat([state.pop(f'q.{part}'), state.pop(f'kv.{part}')])
    x = tensors['x'] if 'x' in tensors else tensors['in.x']
    return {THEIRS + k: v for k, v in state.items()}, x, tensors['out']


@pytest.mark.parametrize('name', CASES)
def test_converted_layer_gives_the_recorded_output(golden, name):
    state, x, expected = recorded(golden, name)
    attn = build_attention(CASES[name], 16, 2).double()
    converted = convert(state, 'swin')
    assert all(key.startswith(OURS) for key in converted)
    attn.load_state_dict(below(converted, OURS))
    hw = SHAPES.get(name, (4, 4))
    torch.testing.assert_close(attn(x, hw), expected, rtol=1e-10, atol=1e-10)


def test_names_are_those_of_the_backbone(golden):
    attn_cfg = [dict(type='PolaFormerAttention', map_size=4), *['WindowAttention'] * 3]
    arch = dict(embed_dims=(16, 16, 16, 16), depths=2, num_heads=2)
    names = set(Swin(arch, attn_cfg).state_dict())
    converted = convert(recorded(golden, 'polaformer.swin')[0], 'swin')
    assert {name.removeprefix('backbone.') for name in converted} <= names


@pytest.mark.parametrize('missing', ['scale', 'dwc.weight', 'dwc.bias'])
def test_a_missing_tensor_is_named(missing):
    shapes = {'positional_encoding': (1, 16, 32), 'scale': (1, 1, 32), 'dwc.weight': (16, 1, 5, 5)}
    shapes['dwc.bias'] = (16,)
    state = {THEIRS + name: torch.ones(shape) for name, shape in shapes.items() if name != missing}
    with pytest.raises(CheckpointError, match=f'positional_encoding, but no {THEIRS}{missing}'):
        convert(state, source='swin')
