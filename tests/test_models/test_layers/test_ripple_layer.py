import pytest
import torch

from mmlinattn.models.layers import LinearAttention, RippleAttention
from mmlinattn.ops import ripple_attention, stick_breaking
from mmlinattn.ops.common.feature_maps import elu1

HW = (5, 6)


def count(layer):
    return sum(p.numel() for p in layer.parameters())


def test_max_distance_0_is_linear_attention():
    ripple = RippleAttention(32, 2, max_distance=0).double()
    linear = LinearAttention(32, 2).double()
    linear.load_state_dict(ripple.state_dict(), strict=False)
    x = torch.randn(2, 30, 32, dtype=torch.float64)
    torch.testing.assert_close(ripple(x, HW), linear(x, HW))


def test_logits_equal_the_formula():
    attn = RippleAttention(32, 2, max_distance=3).double()
    v = torch.randn(1, 2, 4, 16, dtype=torch.float64)
    weights = attn.spatial_weights(v)
    for head in range(2):
        for n in range(4):
            hidden = attn.weight_proj(v[0, head, n])
            logits = torch.stack([hidden @ unit for unit in attn.units[head]])
            torch.testing.assert_close(weights[0, head, n], stick_breaking(logits))


def test_kinds_of_weights():
    v = torch.randn(2, 2, 5, 16)
    fixed = RippleAttention(32, 2, 3, weights='fixed')
    expected = torch.tensor([0.5, 0.25, 0.125, 0.125]).expand(2, 2, 5, 4)
    torch.testing.assert_close(fixed.spatial_weights(v), expected)
    assert count(fixed) == count(LinearAttention(32, 2))
    truncated = RippleAttention(32, 2, 3, weights='truncated').spatial_weights(v)
    assert (truncated[..., -1] == 0).all() and (truncated[..., :-1] > 0).all()
    softmax = RippleAttention(32, 2, 3, weights='softmax').spatial_weights(v)
    assert softmax.shape == (2, 2, 5, 4)
    for kind in (softmax, RippleAttention(32, 2, 3, threshold=0.9).spatial_weights(v)):
        torch.testing.assert_close(kind.sum(-1), torch.ones(2, 2, 5))
    # Small initial logits: equal parts with the offset, halves without.
    equal = RippleAttention(32, 2, 3).spatial_weights(v)
    torch.testing.assert_close(equal, torch.full_like(equal, 0.25), atol=0.1, rtol=0)
    halves = RippleAttention(32, 2, 3, stick_offset=False).spatial_weights(v)
    torch.testing.assert_close(halves, expected, atol=0.1, rtol=0)


@pytest.mark.parametrize('offset', [True, False])
@pytest.mark.parametrize('algorithm', ['auto', 'reference', 'sat', 'tile'])
def test_the_layer_breaks_the_stick_of_its_logits(algorithm, offset):
    attn = RippleAttention(
        32, 2, 3, stick_offset=offset, backend=algorithm, feature_map='elu+1'
    ).double()
    torch.nn.init.normal_(attn.units)
    x = torch.randn(2, 30, 32, dtype=torch.float64)
    q, k, v = (attn.split_heads(t) for t in attn.in_proj(x).chunk(3, -1))
    weights = stick_breaking(attn.logits(v), offset=offset)
    out = ripple_attention(elu1(q), elu1(k), v, weights, hw_shape=HW, backend='reference')
    expected = attn.proj(out.transpose(1, 2).flatten(2))
    torch.testing.assert_close(attn(x, HW), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize('layer', [LinearAttention, RippleAttention])
def test_rotary_position_changes_the_output(layer):
    moved = layer(32, 2, rotary=True, feature_map='elu+1')
    plain = layer(32, 2, feature_map='elu+1')
    plain.load_state_dict(moved.state_dict())
    x = torch.randn(1, 30, 32)
    assert not torch.allclose(plain(x, HW), moved(x, HW), atol=1e-4)
    # A single token is at the origin, where the rotation is the identity.
    torch.testing.assert_close(plain(x[:, :1], (1, 1)), moved(x[:, :1], (1, 1)))
