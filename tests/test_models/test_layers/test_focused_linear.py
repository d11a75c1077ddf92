import pytest
import torch

from mmlinattn.models.layers import FocusedLinearAttention


@pytest.mark.parametrize('power', [3, 4.5])
def test_equals_its_definition(power, defined_by, dims):
    attn = FocusedLinearAttention(**dims, power=power)
    torch.nn.init.normal_(attn.feature_map.scale)

    def definition(q, k, v, places):
        def norm(x):
            return x.square().sum((0, 2), keepdim=True).sqrt()

        def phi(x):
            r = (x.clamp(min=0) + 1e-6) / (1 + attn.feature_map.scale.exp()).log()
            return norm(r) / norm(r**power) * r**power

        kernel = phi(q) @ phi(k).mT
        return kernel @ v / (kernel.sum(-1, keepdim=True) + 1e-6)

    defined_by(attn, definition, tolerance=1e-9)


def test_high_powers_are_finite_for_small_and_large_channels(dims):
    attn = FocusedLinearAttention(**dims, power=12)
    for size in (1e-9, 1e5):
        x = (size * torch.randn(1, 2, 6, 8)).requires_grad_()
        features = attn.feature_map.features(x)
        features.sum().backward()
        assert torch.isfinite(features).all() and torch.isfinite(x.grad).all()


def test_features_keep_their_norm(dims):
    x = torch.rand(1, 2, 6, 8, dtype=torch.float64)
    attn = FocusedLinearAttention(**dims).double()
    length = torch.linalg.vector_norm(x + 1e-6, dim=(1, 3)) / torch.tensor(2.0).double().log()
    features = attn.feature_map.features(x)
    torch.testing.assert_close(torch.linalg.vector_norm(features, dim=(1, 3)), length)


def test_bad_power(dims):
    with pytest.raises(ValueError, match='power must be at least 1, got 0.5'):
        FocusedLinearAttention(**dims, power=0.5)
