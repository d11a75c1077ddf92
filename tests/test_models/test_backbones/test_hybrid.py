"""Attentions by layer: every backbone, the short form, its errors, and the command lines."""

import itertools

import pytest
import torch

from mmlinattn.models.backbones import RAVLT, Backbone, MAViT, ViT
from mmlinattn.models.layers import BaseAttention, expand_attn_cfg, registered_subclasses
from tests.more_rules import small_options

FOUND = registered_subclasses(Backbone).values()
BACKBONES = [cls for cls in FOUND if cls.__module__.startswith('mmlinattn.models.')]
SIZE = (64, 96)
HYBRID = dict(default='LinearAttention', softmax=[0, 'last1'], RWGKA=dict(layers=2, num_anchors=4))


def build(cls, attn_cfg):
    options = small_options(cls, SIZE)
    if 'depths' in options['arch']:
        options['arch'] = dict(options['arch'], depths=2)
    return cls(attn_cfg=attn_cfg, **options)


def layers(model):
    """Return the attention of each block, in the order in which the image passes them."""
    blocks = getattr(model, 'layers', None)
    blocks = itertools.chain.from_iterable(model.stages) if blocks is None else blocks
    return [next(m for m in block.modules() if isinstance(m, BaseAttention)) for block in blocks]


@pytest.mark.parametrize('cls', BACKBONES, ids=lambda cls: cls.__name__)
def test_every_backbone_places_attentions_by_layer(cls):
    model = build(cls, HYBRID)
    count = len(layers(model))
    expected = ['LinearAttention'] * count
    expected[0] = expected[-1] = 'SoftmaxAttention'
    expected[2] = 'RWGKA'
    assert [type(attn).__name__ for attn in layers(model)] == expected
    assert layers(model)[2].num_anchors == 4
    # The resolved list is an attn_cfg with the same weights.
    same = build(cls, model.layer_attn_cfgs)
    same.load_state_dict(model.state_dict())
    image = torch.randn(1, 3, *SIZE)
    torch.testing.assert_close(model.eval()(image), same.eval()(image))
    sum(out.square().mean() for out in model(image)).backward()
    assert all(attn.in_proj.weight.grad.abs().sum() > 0 for attn in layers(model))
    with pytest.raises(ValueError, match=rf'layer {count}, but there are {count} layers'):
        build(cls, dict(default='MALA', softmax=[count]))


def test_stages_and_layers():
    names = ['MALA', 'MALA', 'SoftmaxAttention', 'SoftmaxAttention']
    model = MAViT('tiny', attn_cfg=dict(default=names, RALA=['last1']))
    assert model.attn_cfgs == [*names[:3], ['SoftmaxAttention', 'RALA']]
    assert model.layer_attn_cfgs == ['MALA'] * 4 + ['SoftmaxAttention'] * 7 + ['RALA']
    with pytest.raises(ValueError, match='or 4: one per stage or 12: one per layer'):
        MAViT('tiny', attn_cfg=names[:3])


@pytest.mark.parametrize(
    'options, message',
    [
        (dict(softmax=[1, 7]), 'softmax names layer 7, but there are 6 layers, 0 to 5'),
        (dict(softmax=[-1]), 'softmax names layer -1, but there are 6 layers'),
        (dict(RALA=['last7']), "RALA names layer 'last7', but there are 6 layers"),
        (dict(softmax=['last']), r"by numbers or 'lastN' \(the last N\), got 'last'$"),
        (dict(softmax=[True]), r"by numbers or 'lastN' \(the last N\), got True"),
        (dict(softmax=dict(layers=[3], type='RALA')), r"softmax is the type, .* 'type' \('RALA'\)"),
        (dict(softmax=[3], RALA=['last3']), 'softmax and RALA both name layer 3'),
        (dict(RALA=dict(lepe=3)), "RALA needs 'layers', the layers it is for"),
        (dict(type='RALA'), r"both 'type' \('RALA'\) and 'default' \('MALA'\): add _delete_=True"),
    ],
)
def test_errors_are_one_line(options, message):
    with pytest.raises(ValueError, match=message) as error:
        expand_attn_cfg(dict(default='MALA', **options), 2, depths=(2, 4))
    assert '\n' not in str(error.value)


@pytest.mark.parametrize(
    'attn_cfg, error, message',
    [
        (dict(default='MALA', sofmax=[]), KeyError, "'sofmax' .*; did you mean softmax?"),
        (dict(default='MALA', RALLA=[11]), KeyError, "'RALLA' .*; did you mean RALA?"),
        (dict(default='MAAL', softmax=range(12)), KeyError, "'MAAL' .*; did you mean MALA?"),
        (dict(default='softmax'), KeyError, 'did you mean SoftmaxAttention?'),
        (dict(default='', softmax=[3]), KeyError, "attention '' is not registered"),
        (dict(defualt='MALA', softmax=[3]), TypeError, "needs 'type', or 'default' for a hybrid"),
    ],
)
def test_names_are_checked_also_of_layers_that_are_not_built(attn_cfg, error, message):
    with pytest.raises(error, match=message):
        ViT(dict(embed_dims=32, num_heads=2, depth=12), attn_cfg, img_size=32, out_indices=(3,))


def test_range_of_layers():
    cfgs = expand_attn_cfg(dict(default='MALA', softmax=range(1, 3)), 4)
    assert cfgs == ['MALA', 'SoftmaxAttention', 'SoftmaxAttention', 'MALA']


def test_released_weights_need_their_attention_in_every_layer():
    weights = dict(trained_attention=torch.tensor(list(b'RALA,RALA,RALA,RALA')))
    RAVLT('tiny', attn_cfg='RALA').load_state_dict(dict(weights), strict=False)
    hybrid = RAVLT('tiny', attn_cfg=dict(default='RALA', softmax=['last1']))
    with pytest.raises(ValueError, match='RALA, RALA, RALA, RALA.SoftmaxAttention: set attn_cfg'):
        hybrid.load_state_dict(dict(weights), strict=False)
    for record in (torch.tensor([82, 255, 254]), torch.tensor([300]), torch.rand(2, 2)):
        damaged = dict(trained_attention=record)
        with pytest.raises(
            ValueError, match='trained_attention, the record .* is damaged: convert'
        ):
            hybrid.load_state_dict(damaged, strict=False)
