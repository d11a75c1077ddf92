import pytest
import torch

from mmlinattn.models.layers import EnhancedLinearAttention


def test_eps_of_the_release_is_finite_in_half_precision(dims):
    attn = EnhancedLinearAttention(**dims, eps=1e-15)
    x = torch.zeros(1, 12, 16, requires_grad=True)  # all features are 0
    with torch.no_grad():
        attn.in_proj.bias.zero_()
    with torch.autocast('cpu', dtype=torch.float16):
        out = attn(x, (3, 4))
    out.float().sum().backward()
    assert torch.isfinite(out).all() and torch.isfinite(x.grad).all()


@pytest.mark.parametrize(
    'scales, message',
    [
        ((4,), r'scales must be a list of odd kernel sizes, got \(4,\)'),
        (5, 'scales must be a list of odd kernel sizes, got 5'),
        ((0,), 'scales must be a positive integer, got 0'),
        ((3.0,), 'scales must be a positive integer, got 3.0'),
        ((-1,), 'scales must be a positive integer, got -1'),
    ],
)
def test_bad_scales(scales, message, dims):
    with pytest.raises(ValueError, match=message):
        EnhancedLinearAttention(**dims, scales=scales)
