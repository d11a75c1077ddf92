"""Linear attention, RALA and MALA: what sets them apart, their errors."""

import pytest
import torch

from mmlinattn.ops import (
    PackedShapes,
    Rotary,
    apply_rotary,
    linear_attention,
    mala_attention,
    rala_attention,
    unnormalised_attention,
)
from mmlinattn.ops.common.feature_maps import elu1


@pytest.mark.parametrize('attention', [linear_attention, rala_attention, mala_attention])
@pytest.mark.parametrize(
    'change, error, message',
    [
        (dict(k=torch.randn(1, 2, 5, 8)), ValueError, r'k has shape \(1, 2, 5, 8\)'),
        (dict(k=torch.rand(1, 2, 6, 8, device='meta')), ValueError, 'k is .* on meta, q .* on cpu'),
        (dict(v=torch.rand(1, 2, 5, 8)), ValueError, r'v must .* \(1, 2, 6, d_v\), got \(1, 2, 5'),
        (dict(v=torch.randn(1, 2, 6, 8).double()), ValueError, 'v is torch.float64'),
        (dict(q=torch.rand(1, 2, 0, 8)), ValueError, r'q has no tokens: .* \(1, 2, 0, 8\)'),
        (dict(q=torch.randn(2, 6, 8)), ValueError, r'q must have shape .* got \(2, 6, 8\)'),
        (dict(rotary=Rotary((2, 2), 8)), ValueError, r'\(2, 2\) has 4 positions but q has 6'),
        (dict(rotary=Rotary((2, 3), 4)), ValueError, 'rotary.head_dim is 4, but q has 8 channels'),
        (dict(rotary=Rotary((2, 3), 8, base=0)), ValueError, 'rotary.base must be above 0, got 0'),
        (
            dict(rotary=Rotary((2, 3), 8, augment=torch.ones(2, 2))),
            ValueError,
            'rotary.augment needs normalized=True',
        ),
        (dict(q=torch.ones(1, 2, 6, 8, dtype=torch.int64)), ValueError, 'q must have a floating'),
        (dict(feature_map=['relu']), ValueError, 'feature_map must be one of'),
        (dict(rotary=(torch.ones(6, 8),) * 2), TypeError, 'rotary must be a Rotary, got tuple'),
        (dict(key_padding_mask=torch.zeros(1, 6)), TypeError, 'must be bool'),
        (dict(key_padding_mask=torch.zeros(1, 5).bool()), ValueError, r'\(1, 6\), got \(1, 5\)'),
        (
            dict(key_padding_mask=torch.zeros(1, 6, dtype=torch.bool, device='meta')),
            ValueError,
            'key_padding_mask is on meta, q is on cpu',
        ),
        (dict(feature_map='exp'), ValueError, "feature_map must be one of .* got 'exp'"),
        (dict(backend='quick'), ValueError, "'quick'"),
    ],
)
def test_bad_input_names_argument_and_value(attention, change, error, message):
    q, k, v = torch.randn(3, 1, 2, 6, 8)
    with pytest.raises(error, match=message):
        attention(**{**dict(q=q, k=k, v=v), **change})


@pytest.mark.parametrize('weights', [torch.ones(1, 2, 5), torch.ones(1, 2, 6, 1), 1.0])
def test_token_weights_of_another_shape(weights):
    q, k, v = torch.randn(3, 1, 2, 6, 8)
    with pytest.raises(ValueError, match=r'broadcastable to \(B, heads, N\) = \(1, 2, 6\), got'):
        rala_attention(q, k, v, token_weights=weights)


@pytest.mark.parametrize(
    'x, rotary, message',
    [
        (torch.ones(1, 6, 8, dtype=torch.int64), Rotary((2, 3), 8), 'x must have a floating point'),
        (torch.ones(6, 8), Rotary((1, 1), 8), 'has 1 positions but x has 6 tokens'),
        (torch.ones(8), Rotary((2, 3), 8), r'x must have shape \(..., N, d\), got \(8,\)'),
        (torch.ones(5, 8), Rotary(PackedShapes([(2, 3)]), 8), '6 positions but x has 5 tokens'),
        (torch.ones(6, 4), Rotary((2, 3), 8), 'rotary.head_dim is 8, but x has 4 channels'),
        (
            torch.ones(1, 6, 8),
            Rotary((2, 3), 8, num_heads=2),
            'num_heads is 2, but x has 1 heads',
        ),
    ],
)
def test_rotary_that_does_not_fit(x, rotary, message):
    with pytest.raises(ValueError, match=message):
        apply_rotary(x, rotary)


def test_without_augmentation_it_is_plain_linear_attention():
    q, k, v = torch.randn(3, 1, 2, 9, 8, dtype=torch.float64)
    ones = torch.ones(1, 1, 1, dtype=torch.float64)
    out = rala_attention(q, k, v, token_weights=ones, eps=0)
    phi_q, phi_k = (torch.where(x > 0, x + 1, x.exp()) for x in (q, k))
    kernel = phi_q @ phi_k.mT
    torch.testing.assert_close(out, (kernel / kernel.sum(-1, keepdim=True)) @ v)


def test_weights_sum_to_one_and_follow_the_length_of_the_query():
    """What linear attention lacks: a longer query has sharper weights."""
    q, k = torch.randn(2, 1, 1, 12, 8, dtype=torch.float64)
    q = q.relu() + 1  # phi then adds 1: its length can be scaled
    identity = torch.eye(12, dtype=torch.float64)[None, None]
    spreads = []
    for scale in (1, 4):
        weights = mala_attention(scale * q, k, identity, eps=0)
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
        spreads.append(weights.std(-1))
    assert (spreads[1] > 2 * spreads[0]).all()


def test_without_a_normaliser():
    q, k = torch.randn(2, 2, 2, 7, 3, dtype=torch.float64).unbind()
    v = torch.randn(2, 2, 7, 4, dtype=torch.float64)
    padding = torch.zeros(2, 7, dtype=torch.bool)
    padding[0, 4:] = padding[1] = True
    out = unnormalised_attention(q, k, v, key_padding_mask=padding)
    expected = torch.einsum('bhnm,bhjm,bhjd->bhnd', q[:1], k[:1, :, :4], v[:1, :, :4])
    torch.testing.assert_close(out[:1], expected)
    assert (out[1] == 0).all()


def test_without_a_normaliser_halves_do_not_overflow():
    x = torch.full((1, 1, 70000, 2), 4.0, dtype=torch.float16)
    assert (unnormalised_attention(x, x, x) == 4 * 70000 * 16 * 2).all()


def test_elu_plus_one_and_its_gradients():
    """Against exp and x + 1 in float64; far below zero and for a batch of gradients too."""
    x = torch.tensor([-80.0, -20.0, -1.0, -1e-6, 0.0, 1e-6, 3.0, 1e4], requires_grad=True)
    wanted = torch.where(x.double() > 0, x.double() + 1, x.double().exp())
    torch.testing.assert_close(elu1(x).double(), wanted, rtol=1e-6, atol=0)
    slope = torch.autograd.functional.jacobian(elu1, x, vectorize=True).diagonal()
    torch.testing.assert_close(slope.double(), wanted.clamp(max=1), rtol=1e-6, atol=0)
