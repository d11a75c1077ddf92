"""Depth-wise convolution with the residual in its kernel, compared in float64."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mmlinattn.models.layers import (
    add_depthwise,
    depthwise_conv,
    map_to_tokens,
    tokens_to_map,
)

from .conftest import assert_near_exact


@pytest.mark.parametrize('size', [3, 5])
@pytest.mark.parametrize('hw', [(1, 1), (4, 7), (16, 2)])
@pytest.mark.parametrize('bias', [True, False])
def test_outputs_and_gradients(hw, size, bias):
    conv = nn.Conv2d(6, 6, size, padding=size // 2, groups=6, bias=bias)
    x = torch.randn(2, hw[0] * hw[1], 6, requires_grad=True)
    leaves = [x, *conv.parameters()]
    exact = [t.detach().double().requires_grad_() for t in leaves]
    mapped = F.conv2d(tokens_to_map(exact[0], hw), *exact[1:], padding=size // 2, groups=6)
    expected = exact[0] + map_to_tokens(mapped)
    out = add_depthwise(x, conv, hw)
    assert_near_exact(out, leaves, expected, exact, 1e-6)
    assert torch.equal(conv.weight, leaves[1])


def test_half_types_keep_small_kernels():
    """Test a kernel of 0.001: next to 1, bfloat16 has steps of 1/128 and would lose it."""
    conv = nn.Conv2d(4, 4, 3, padding=1, groups=4, bias=False)
    nn.init.constant_(conv.weight, 1e-3)
    x = torch.full((1, 9, 4), 1.0)
    expected = x[0, 4] + 9e-3
    with torch.autocast('cpu', torch.bfloat16):
        torch.testing.assert_close(
            add_depthwise(x, conv, (3, 3))[0, 4], expected, rtol=1e-4, atol=0
        )
    by_hand = x.bfloat16() + map_to_tokens(conv.bfloat16()(tokens_to_map(x.bfloat16(), (3, 3))))
    assert torch.equal(add_depthwise(x.bfloat16(), conv, (3, 3)), by_hand)


def test_the_defaults_of_torch_at_the_first_call_change_nothing():
    depthwise_conv._identity_kernel.cache_clear()
    x, conv = torch.randn(1, 9, 2), nn.Conv2d(2, 2, 3, padding=1, groups=2)
    try:
        torch.set_default_dtype(torch.float64)
        torch.set_default_device('meta')
        out = add_depthwise(x, conv, (3, 3))
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
    torch.testing.assert_close(out, add_depthwise(x, conv, (3, 3)))
    torch.testing.assert_close(out, x + map_to_tokens(conv(tokens_to_map(x, (3, 3)))))
