import pytest
import torch
import torch.nn.functional as F

from mmlinattn.models.layers import EnhancedLinearAttention


def test_equals_its_definition_with_padding(dims):
    """Compare with convolutions per position, N x N ReLU attention and the projection.

    The image is tested alone and on a larger, padded map.
    """
    attn = EnhancedLinearAttention(**dims, scales=(3,)).double()
    x = torch.randn(1, 12, 16, dtype=torch.float64, requires_grad=True)
    depthwise, pointwise = (layer.weight for layer in attn.aggregations[0])
    own = attn.in_proj(x)[0].view(3, 4, 48)
    near = F.pad(own, (0, 0, 1, 1, 1, 1))
    mixed = sum(
        near[i : i + 3, j : j + 4] * depthwise[:, 0, i, j] for i in range(3) for j in range(3)
    )
    mixed = torch.einsum('hwgd,ged->hwge', mixed.unflatten(-1, (6, 8)), pointwise.view(6, 8, 8))
    out = []
    for qkv in (own, mixed.flatten(2)):
        q, k, v = qkv.view(12, 3, 2, 8).permute(1, 2, 0, 3)  # [2, 12, 8] each
        kernel = q.relu() @ k.relu().mT
        out.append(kernel @ v / (kernel.sum(-1, keepdim=True) + 1e-6))
    expected = attn.proj(torch.cat(out).transpose(0, 1).flatten(1))
    inputs = [x, *attn.parameters()]
    cotangent = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, inputs, cotangent)

    larger = torch.full((1, 5, 6, 16), 7.0, dtype=torch.float64)
    larger[:, :3, :4] = x.view(1, 3, 4, 16)
    mask = torch.ones(1, 5, 6, dtype=torch.bool)
    mask[:, :3, :4] = False
    alone = attn(x, (3, 4))[0]
    padded = attn(larger.flatten(1, 2), (5, 6), key_padding_mask=mask.flatten(1))[0]
    for got in (alone, padded.view(5, 6, 16)[:3, :4].flatten(0, 1)):
        torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)
        for a, b in zip(torch.autograd.grad(got, inputs, cotangent), wanted):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


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
