"""Encoder and decoder of SMCA: equality with DETR, padding, precision, errors."""

import pytest
import torch
from mmdet.models.layers import DetrTransformerDecoderLayer
from torch import nn

from mmlinattn.models.detectors.smca_decoder import (
    Memory,
    ModulatedAttention,
    SMCADecoder,
    SMCADecoderLayer,
)
from mmlinattn.models.detectors.smca_encoder import SMCAEncoder, SMCAEncoderLayer
from tests.sizes import LONG

C, HEADS, HIDDEN, HW = 32, 4, 48, (5, 6)
SIZES = dict(embed_dims=C, num_heads=HEADS, feedforward_channels=HIDDEN)
FFN = dict(embed_dims=C, feedforward_channels=HIDDEN, num_fcs=2, ffn_drop=0.1)
ATTN = dict(embed_dims=C, num_heads=HEADS, attn_drop=0.1)
ATTENTIONS = ('SoftmaxAttention', 'LinearAttention', 'RippleAttention')


def tokens(batch=2, n=30, dtype=torch.float64):
    return torch.randn(batch, n, C, dtype=dtype)


def padding(*columns):
    """Return padding masks of a 5 x 6 map with the given numbers of real columns."""
    mask = torch.ones(len(columns), *HW, dtype=torch.bool)
    for i, width in enumerate(columns):
        mask[i, :, :width] = False
    return mask.flatten(1)


def randomise(module):
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.2)
    return module.double().eval()


def test_one_attention_per_layer():
    cfgs = ['RALA', dict(type='RWGKA', num_anchors=4)]
    encoder = SMCAEncoder(2, dict(SIZES, attn_cfg=cfgs))
    assert [type(layer.self_attn).__name__ for layer in encoder.layers] == ['RALA', 'RWGKA']
    with pytest.raises(ValueError, match='attn_cfg must be one attention, or 3: one per layer'):
        SMCAEncoder(3, dict(SIZES, attn_cfg=cfgs))


def test_decoder_layer_equals_detr_with_an_additive_mask():
    ours = randomise(SMCADecoderLayer(**SIZES))
    theirs = DetrTransformerDecoderLayer(
        self_attn_cfg=dict(ATTN), cross_attn_cfg=dict(ATTN), ffn_cfg=dict(FFN)
    )
    theirs = theirs.double().eval()
    for name in ('self_attn', 'cross_attn'):
        a, b = getattr(ours, name), getattr(theirs, name).attn
        b.in_proj_weight.data, b.in_proj_bias.data = a.in_proj.weight.data, a.in_proj.bias.data
        b.out_proj.load_state_dict(a.proj.state_dict())
    theirs.ffn.load_state_dict(ours.ffn.state_dict())
    theirs.norms.load_state_dict(ours.norms.state_dict())
    query, pos, memory, key_pos = tokens(n=7), tokens(n=7), tokens(), tokens()
    reference, mask = 5 * torch.rand(2, 7, 2).double(), padding(6, 4)
    modulation = ours.modulation(query, pos, reference, HW)
    assert modulation.shape == (2, HEADS, 7, 30)
    expected = theirs(
        query,
        key=memory,
        value=memory,
        query_pos=pos,
        key_pos=key_pos,
        cross_attn_mask=modulation.flatten(0, 1),
        key_padding_mask=mask,
    )
    out = ours(query, pos, reference, Memory(memory, HW, key_pos, mask))
    torch.testing.assert_close(out, expected)
    assert not torch.allclose(out, ours(query, pos, reference + 2, Memory(memory, HW, key_pos)))


@pytest.fixture(params=ATTENTIONS)
def encoder(request):
    return randomise(SMCAEncoder(2, dict(SIZES, attn_cfg=request.param)))


@pytest.fixture
def decoder():
    return randomise(SMCADecoder(3, dict(SIZES)))


def test_padding_does_not_change_outputs(encoder, decoder):
    """Compare an unpadded image with one padded by random content, right and bottom."""
    query, query_pos = tokens(1, 7), tokens(1, 7)
    x, pos, sizes = tokens(1), tokens(1), torch.tensor([[170.0, 150.0]]).double()
    memory = encoder(x, HW, pos)
    alone = decoder(query, query_pos, Memory(memory, HW, pos), sizes)

    def beside(tensor):
        wide = 9 * torch.randn(1, 8, 9, C).double()
        wide[:, :5, :6] = tensor.unflatten(1, HW)
        return wide.flatten(1, 2)

    mask = torch.ones(1, 8, 9, dtype=torch.bool)
    mask[:, :5, :6] = False
    x, pos, mask = beside(x), beside(pos), mask.flatten(1)
    padded = encoder(x, (8, 9), pos, mask)
    torch.testing.assert_close(padded[~mask], memory[0])
    found = decoder(query, query_pos, Memory(padded, (8, 9), pos, mask), sizes)
    torch.testing.assert_close(found, alone)
    wrong = decoder(query, query_pos, Memory(padded, (8, 9), pos), sizes)
    assert not torch.allclose(wrong[0], alone[0])


def test_image_of_padding_only(encoder, decoder):
    x = tokens().requires_grad_()
    mask, pos, query = padding(0, 6), tokens(), tokens(n=7)
    memory = Memory(encoder(x, HW, pos, mask), HW, pos, mask)
    states, points = decoder(query, query, memory, torch.tensor([[0.0, 0.0], [192.0, 160.0]]))
    (states.sum() + points.sum()).backward()
    assert torch.isfinite(states).all() and torch.isfinite(x.grad).all()
    # The other image does not change.
    alone = Memory(encoder(x[1:], HW, pos[1:]), HW, pos[1:])
    expected = decoder(query[1:], query[1:], alone, torch.tensor([[192.0, 160.0]]))[0]
    torch.testing.assert_close(states[:, 1:], expected)


def test_attention_without_keys_is_the_bias():
    attn = randomise(ModulatedAttention(C, HEADS))
    mask = torch.ones(2, 30, dtype=torch.bool)
    out = attn(tokens(n=7), tokens(), tokens(), torch.zeros(2, HEADS, 7, 30).double(), mask)
    torch.testing.assert_close(out, attn.proj.bias.expand_as(out))


def test_maps_of_all_layers_have_gradients_for_the_points(decoder):
    query = tokens(n=7)
    memory = Memory(tokens(), HW, tokens())
    for i in range(3):
        decoder.zero_grad()
        states, _ = decoder(query, query, memory, torch.tensor([[192.0, 160.0]]).double())
        states[i].square().sum().backward()
        assert decoder.point.layers[2].weight.grad.abs().sum() > 0
        used = [bool(layer.offset.weight.grad.any()) for layer in decoder.layers]
        assert used == [j <= i for j in range(3)]


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_autocast(decoder, dtype):
    decoder = decoder.float()
    decoder.layers[1].scale.bias.data.fill_(300)  # the map reaches minus millions
    query = tokens(n=7, dtype=torch.float32)
    memory = Memory(tokens(dtype=torch.float32), HW, tokens(dtype=torch.float32))
    sizes = torch.tensor([[192.0, 160.0]])
    exact, _ = decoder(query, query, memory, sizes)
    seen = []
    for layer in decoder.layers:
        layer.cross_attn.register_forward_pre_hook(lambda _, args: seen.append(args[3].dtype))
    with torch.autocast('cpu', dtype=dtype):
        states, _ = decoder(query, query, memory, sizes)
    assert set(seen) == {torch.float32}
    assert torch.isfinite(states).all()
    assert (states[0].float() - exact[0]).norm() / exact[0].norm() < 0.05


# The attentions alone are compiled in test_attention_contract.py.
@pytest.mark.long
@pytest.mark.parametrize('encoder', ATTENTIONS if LONG else ['LinearAttention'], indirect=True)
def test_compiles_without_graph_breaks(encoder, decoder, needs_to_compile):
    needs_to_compile("mmcv's FFN")

    def run(x, query, pos, sizes):
        return decoder(query, query, Memory(encoder(x, HW, pos), HW, pos), sizes)

    args = tokens(), tokens(n=7), tokens(), torch.tensor([[192.0, 160.0]]).double()
    compiled = torch.compile(run, fullgraph=True, backend='aot_eager')
    torch.testing.assert_close(compiled(*args), run(*args))


def test_dropout_in_training_only():
    layer = SMCAEncoderLayer(dict(type='SoftmaxAttention', attn_drop=0.1), **SIZES).double()
    assert layer.self_attn.proj_drop.p == layer.self_attn.attn_drop == 0.1
    decoder_layer = SMCADecoderLayer(**SIZES).double()
    for attn in (decoder_layer.self_attn, decoder_layer.cross_attn):
        assert attn.proj_drop.p == attn.attn_drop == 0.1
    attn = decoder_layer.cross_attn
    attn.proj_drop.p = 0.0  # leaves dropout on attention weights
    args = tokens(n=7), tokens(), tokens(), torch.zeros(2, HEADS, 7, 30).double()
    assert not torch.equal(attn(*args), attn(*args))
    attn.eval()
    assert torch.equal(attn(*args), attn(*args))


@pytest.mark.parametrize(
    'call, error, message',
    [
        (lambda: SMCADecoderLayer(**SIZES, smooth=0), ValueError, 'smooth must be positive, got 0'),
        (lambda: SMCADecoder(1, dict(SIZES), stride=0), ValueError, 'stride .* got 0'),
        (lambda: SMCADecoderLayer(30, 4), ValueError, 'embed_dims=30 .* num_heads=4'),
        (lambda: SMCAEncoder(1, dict(SIZES, attn_cfg='RALLA')), KeyError, "'RALLA' is not"),
    ],
)
def test_bad_options(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_memory_of_another_map(decoder):
    query, memory = tokens(n=7), Memory(tokens(n=29), HW, tokens(n=29))
    with pytest.raises(ValueError, match=r'hw_shape=\(5, 6\) has 30 positions but memory has 29'):
        decoder(query, query, memory, torch.ones(2, 2))
