"""What RALA and MALA share: padding, precision, strides and errors."""

import pytest
import torch

from mmlinattn.ops import Rotary, mala_attention, rala_attention

BACKENDS = ('reference', 'torch')


@pytest.fixture(params=[rala_attention, mala_attention], ids=['rala', 'mala'])
def attention(request):
    return request.param


@pytest.mark.parametrize('dtype, tolerance', [(torch.float16, 3e-3), (torch.bfloat16, 2e-2)])
def test_half_precision_accumulates_in_float32(attention, dtype, tolerance):
    # 16,384 tokens with large logits: sums in half precision would overflow or stall.
    # The contrast of MALA grows with the length of a query, and so its output.
    size = 30 if attention is rala_attention else 10
    q, k, v = (size * torch.randn(3, 1, 1, 16384, 16)).to(dtype)
    exact = attention(q.double(), k.double(), v.double(), backend='torch')
    for autocast in (False, True):
        with torch.autocast('cpu', dtype=torch.bfloat16, enabled=autocast):
            out = attention(q, k, v, backend='torch')
        assert torch.isfinite(out).all()
        assert (out.double() - exact).norm() / exact.norm() < tolerance


@pytest.mark.parametrize(
    'change, error, message',
    [
        (dict(k=torch.randn(1, 2, 5, 8)), ValueError, r'k has shape \(1, 2, 5, 8\)'),
        (dict(v=torch.randn(1, 2, 6, 8).double()), ValueError, 'v is torch.float64'),
        (dict(q=torch.randn(2, 6, 8)), ValueError, r'q must have shape .* got \(2, 6, 8\)'),
        (dict(rotary=Rotary((2, 2), 8)), ValueError, r'\(2, 2\) has 4 positions but q has 6'),
        (dict(rotary=Rotary((2, 3), 4)), ValueError, 'rotary.head_dim is 4, but q has 8 channels'),
        (dict(rotary=(torch.ones(6, 8),) * 2), TypeError, 'rotary must be a Rotary, got tuple'),
        (dict(key_padding_mask=torch.zeros(1, 6)), TypeError, 'must be bool'),
        (dict(key_padding_mask=torch.zeros(1, 5).bool()), ValueError, r'\(1, 6\), got \(1, 5\)'),
        (dict(feature_map='exp'), ValueError, "'exp'"),
        (dict(backend='quick'), ValueError, "'quick'"),
    ],
)
def test_bad_input_names_argument_and_value(attention, change, error, message):
    q, k, v = torch.randn(3, 1, 2, 6, 8)
    with pytest.raises(error, match=message):
        attention(**{**dict(q=q, k=k, v=v), **change})
