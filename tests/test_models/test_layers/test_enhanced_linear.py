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
