"""Encoder and decoder of SMCA: equality with DETR, padding, precision, errors."""

import itertools

import pytest
import torch
from mmdet.models.layers import DetrTransformerDecoderLayer, DetrTransformerEncoder
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


def copy_attention(ours, theirs):
    ours.in_proj.weight.data, ours.in_proj.bias.data = theirs.in_proj_weight, theirs.in_proj_bias
    ours.proj.load_state_dict(theirs.out_proj.state_dict())


def test_one_attention_per_layer():
    cfgs = ['RALA', dict(type='RWGKA', num_anchors=4)]
    encoder = SMCAEncoder(2, dict(SIZES, attn_cfg=cfgs))
    assert [type(layer.self_attn).__name__ for layer in encoder.layers] == ['RALA', 'RWGKA']
    with pytest.raises(ValueError, match='attn_cfg must be one attention, or 3: one per layer'):
        SMCAEncoder(3, dict(SIZES, attn_cfg=cfgs))


def test_softmax_encoder_equals_detr():
    theirs = randomise(DetrTransformerEncoder(2, dict(self_attn_cfg=dict(ATTN), ffn_cfg=dict(FFN))))
    ours = SMCAEncoder(2, dict(SIZES, attn_cfg='SoftmaxAttention')).double().eval()
    for a, b in zip(ours.layers, theirs.layers):
        copy_attention(a.self_attn, b.self_attn.attn)
        a.ffn.load_state_dict(b.ffn.state_dict())
        a.norms.load_state_dict(b.norms.state_dict())
    x, pos, mask = tokens(), tokens(), padding(6, 4)
    expected = theirs(x, query_pos=pos, key_padding_mask=mask)
    torch.testing.assert_close(ours(x, HW, pos, mask), expected)


@pytest.mark.parametrize('dynamic_scale', ['type1', 'type2', 'type3', 'type4'])
def test_decoder_layer_equals_detr_with_an_additive_mask(dynamic_scale):
    ours = randomise(SMCADecoderLayer(**SIZES, dynamic_scale=dynamic_scale))
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


def test_points_and_maps_equal_the_formula():
    """Compute both from the weights, one query, head and cell at a time."""
    decoder = randomise(SMCADecoder(1, dict(SIZES, smooth=5.0), stride=16))
    query, pos, sizes = tokens(n=3), tokens(n=3), torch.tensor([[93.0, 70.0], [50.0, 80.0]])
    points, reference = decoder.predict_points(query, pos, sizes.double())
    maps = decoder.layers[0].modulation(query, pos, reference, HW)
    weights = decoder.state_dict()

    def linear(name, x):
        return weights[f'{name}.weight'] @ x + weights[f'{name}.bias']

    for b, q in itertools.product(range(2), range(3)):
        x = query[b, q] + pos[b, q]
        x = (x - x.mean()) / (x.var(unbiased=False) + 1e-5).sqrt()
        x = x * weights['layers.0.point_norm.weight'] + weights['layers.0.point_norm.bias']
        hidden = linear('point.layers.1', linear('point.layers.0', x).clamp(0)).clamp(0)
        point = linear('point.layers.2', hidden)
        torch.testing.assert_close(points[b, q], point)
        column, row = (sizes[b] / 16 / (1 + (-point).exp())).tolist()
        torch.testing.assert_close(reference[b, q].tolist(), [column, row])
        offsets, scales = linear('layers.0.offset', x), linear('layers.0.scale', x)
        for head, (i, j) in itertools.product(range(HEADS), itertools.product(*map(range, HW))):
            (dx, dy), (sx, sy) = offsets[2 * head :][:2], scales[2 * head :][:2]
            energy = (sx * (column + dx - j)) ** 2 + (sy * (row + dy - i)) ** 2
            torch.testing.assert_close(maps[b, head, q, i * HW[1] + j], -energy / 5)


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


@pytest.mark.parametrize('hw', [(1, 1), (1, 7), (3, 1)])
def test_odd_maps(encoder, decoder, hw):
    n = hw[0] * hw[1]
    memory = Memory(encoder(tokens(n=n), hw, tokens(n=n)), hw, tokens(n=n))
    states, _ = decoder(tokens(n=7), tokens(n=7), memory, torch.tensor([[33.0, 31.0]]).double())
    assert states.shape == (3, 2, 7, C) and torch.isfinite(states).all()


def test_reference_points_in_cells_from_sizes_in_pixels(decoder):
    query = tokens(1, 7).expand(2, -1, -1)
    sizes = torch.tensor([[500.0, 333.0], [512.0, 352.0]]).double()
    points, reference = decoder.predict_points(query, query, sizes)
    torch.testing.assert_close(reference, points.sigmoid() * sizes[:, None] / 32)
    torch.testing.assert_close(points[0], points[1])
    assert not torch.allclose(reference[0], reference[1])
    seen = []
    for layer in decoder.layers:
        layer.register_forward_pre_hook(lambda _, args: seen.append(args[2]))
    decoder(query, query, Memory(tokens(), HW, tokens()), sizes)
    assert len(seen) == 3 and all(torch.equal(found, reference) for found in seen)


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
        (lambda: SMCADecoderLayer(**SIZES, dynamic_scale='type5'), ValueError, "type4.*'type5'"),
        (lambda: SMCADecoderLayer(**SIZES, smooth=0), ValueError, 'smooth must be positive, got 0'),
        (lambda: SMCADecoder(1, dict(SIZES), stride=0), ValueError, 'stride .* got 0'),
        (lambda: SMCADecoderLayer(30, 4), ValueError, 'embed_dims=30 .* num_heads=4'),
        (lambda: SMCAEncoder(1, dict(SIZES, attn_cfg='RALLA')), KeyError, "'RALLA' is not"),
        (
            lambda: SMCADecoder(1, dict(SIZES))(
                torch.zeros(1, 7, C),
                torch.zeros(1, 7, C),
                Memory(torch.zeros(1, 29, C), HW, torch.zeros(1, 29, C)),
                torch.ones(1, 2),
            ),
            ValueError,
            r'hw_shape=\(5, 6\) has 30 positions but memory has 29',
        ),
    ],
)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call()
