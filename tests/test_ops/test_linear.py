import pytest
import torch

from mmlinattn.ops import linear_attention, unnormalised_attention
from mmlinattn.ops.common.feature_maps import elu1


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


@pytest.mark.parametrize(
    'change, error, message',
    [
        (dict(k=torch.rand(1, 2, 6, 7)), ValueError, r'k has shape \(1, 2, 6, 7\)'),
        (dict(v=torch.rand(1, 2, 5, 8)), ValueError, r'v must .* \(1, 2, 6, d_v\), got \(1, 2, 5'),
        (dict(v=torch.rand(1, 2, 6, 8).double()), ValueError, 'v is torch.float64'),
        (dict(k=torch.rand(1, 2, 6, 8, device='meta')), ValueError, 'k is .* on meta, q .* on cpu'),
        (
            dict(key_padding_mask=torch.zeros(1, 6, dtype=torch.bool, device='meta')),
            ValueError,
            'key_padding_mask is on meta, q is on cpu',
        ),
        (dict(key_padding_mask=torch.zeros(1, 6)), TypeError, 'must be bool'),
        (dict(backend='quick'), ValueError, "'quick'"),
        (dict(feature_map='exp'), ValueError, "feature_map must be one of .* got 'exp'"),
        (dict(q=torch.rand(1, 2, 0, 8)), ValueError, r'q has no tokens: .* \(1, 2, 0, 8\)'),
    ],
)
def test_bad_input_names_argument_and_value(change, error, message):
    q, k, v = torch.rand(3, 1, 2, 6, 8)
    with pytest.raises(error, match=message):
        linear_attention(**{**dict(q=q, k=k, v=v), **change})


def test_elu_plus_one_and_its_gradients():
    """Against exp and x + 1 in float64; far below zero and for a batch of gradients too."""
    x = torch.tensor([-80.0, -20.0, -1.0, -1e-6, 0.0, 1e-6, 3.0, 1e4], requires_grad=True)
    wanted = torch.where(x.double() > 0, x.double() + 1, x.double().exp())
    torch.testing.assert_close(elu1(x).double(), wanted, rtol=1e-6, atol=0)
    slope = torch.autograd.functional.jacobian(elu1, x, vectorize=True).diagonal()
    torch.testing.assert_close(slope.double(), wanted.clamp(max=1), rtol=1e-6, atol=0)
