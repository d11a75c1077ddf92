"""Errors that RALA and MALA share."""

import pytest
import torch

from mmlinattn.ops import Rotary, mala_attention, rala_attention


@pytest.mark.parametrize('attention', [rala_attention, mala_attention])
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
