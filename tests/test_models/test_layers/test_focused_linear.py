import pytest
import torch

from mmlinattn.models.layers import FocusedLinearAttention, TokenLayout


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
        return kernel @ v / kernel.shape[-1] / (kernel.mean(-1, keepdim=True) + 1e-6)

    defined_by(attn, definition, tolerance=1e-9)


def test_high_powers_are_finite_for_small_and_large_channels(dims):
    attn = FocusedLinearAttention(**dims, power=12)
    for size in (1e-9, 1e5):
        x = (size * torch.randn(1, 2, 6, 8)).requires_grad_()
        features = attn.feature_map.features(x)
        features.sum().backward()
        assert torch.isfinite(features).all() and torch.isfinite(x.grad).all()


def test_gradients_in_float16_are_finite():
    for seed in range(6):  # three of them have heads without a large channel
        torch.manual_seed(seed)
        attn, x = FocusedLinearAttention(32, 4), torch.randn(2, 35, 32)
        with torch.autocast('cpu', torch.float16):
            out = attn(x, (5, 7))
        out.float().square().sum().backward()
        assert all(p.grad.isfinite().all() for p in attn.parameters())


@pytest.mark.parametrize('padded', [False, True])
def test_eps_does_not_depend_on_the_number_of_keys(dims, padded):
    """Repeat each key: means over the keys do not change, and eps is large enough to show."""
    attn = FocusedLinearAttention(**dims, eps=0.5, lepe=0).double()
    q, k, v = torch.randn(3, 2, 2, 6, 8, dtype=torch.float64)
    mask = torch.zeros(2, 6, dtype=torch.bool)
    mask[1, 4:] = padded
    once = attn.attend(q, k, v, TokenLayout((2, 3), mask if padded else None))
    mask = mask.repeat(1, 5)
    often = attn.attend(
        *(x.repeat(1, 1, 5, 1) for x in (q, k, v)), TokenLayout((10, 3), mask if padded else None)
    )
    torch.testing.assert_close(often[:, :, :6], once)
