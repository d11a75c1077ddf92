"""Fixtures for tests that compare an attention with its definition."""

import pytest
import torch
from torch import Tensor

from mmlinattn.models.layers import BaseAttention, TokenLayout
from tests.recordings import assert_near

DIM, HEADS = 8, 2


def assert_near_exact(out, leaves, expected, exact, bound):
    """Compare an output and its gradients with those in float64, by the norm of the difference."""
    grad = torch.randn_like(out)
    found = [out, *torch.autograd.grad(out, leaves, grad)]
    wanted = [expected, *torch.autograd.grad(expected, exact, grad.double())]
    assert_near([x.double() for x in found], wanted, bound)


@pytest.fixture
def defined_by():
    """Return a function ``check(attn, definition, hw)`` that compares both in float64.

    ``definition(q, k, v, places)`` gets the real tokens of one image, (heads, n, d), and their
    (n, 2) rows and columns, and returns (heads, n, d). One image has no padding, one has padding on
    the bottom and right, one is padding only. Outputs and the gradients of q, k, v and of all
    parameters of :meth:`BaseAttention.attend` are compared.
    """

    def check(attn: BaseAttention, definition, hw=(4, 5), tolerance=1e-10):
        attn.double()
        height, width = hw
        shape = (3, 3, HEADS, height * width, DIM)
        qkv = [x.requires_grad_() for x in torch.randn(shape, dtype=torch.float64)]
        mask = torch.zeros(3, *hw, dtype=torch.bool)
        mask[1, height - 1 :] = mask[1, :, width - 2 :] = mask[2] = True
        mask = mask.flatten(1)
        cotangent = torch.randn_like(qkv[0]).where(~mask[:, None, :, None], 0)
        inputs = [*qkv, *attn.parameters()]

        def gradients(out):
            loss = (out * cotangent).sum()
            return torch.autograd.grad(loss, inputs, allow_unused=True, materialize_grads=True)

        out = attn.attend(*qkv, TokenLayout(hw, mask))
        assert (out[2] == 0).all()
        expected = torch.zeros_like(out)
        places = torch.cartesian_prod(torch.arange(height), torch.arange(width))
        for image in range(2):
            real = (~mask[image]).nonzero().squeeze(1)
            of_image = definition(*(x[image, :, real] for x in qkv), places[real].double())
            expected[image] = expected[image].index_copy(1, real, of_image)
        out = out.where(~mask[:, None, :, None], 0)
        torch.testing.assert_close(out, expected, rtol=tolerance, atol=tolerance)
        for got, wanted in zip(gradients(out), gradients(expected)):
            torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance)

    return check


@pytest.fixture
def dims():
    """Return arguments of the attentions that ``defined_by`` accepts."""
    return dict(embed_dims=DIM * HEADS, num_heads=HEADS)


@pytest.fixture
def layer_defined_by():
    """Return a function ``check(attn, definition, hw)`` that compares the whole layer in float64.

    ``definition(x, real)`` gets the tokens of one image, (H, W, C), and its (H, W) mask of real
    tokens, and returns (H, W, C). One image has no padding, one on the bottom and right. Outputs of
    real tokens and the gradients of x and of all parameters are compared.
    """

    def check(attn: BaseAttention, definition, hw=(4, 5), tolerance=1e-10):
        attn.double()
        for parameter in attn.parameters():
            torch.nn.init.normal_(parameter, std=0.5)
        height, width = hw
        x = torch.randn(2, *hw, attn.embed_dims, dtype=torch.float64).requires_grad_()
        mask = torch.zeros(2, *hw, dtype=torch.bool)
        mask[1, height - 1 :] = mask[1, :, width - 2 :] = True
        cotangent = torch.randn_like(x).masked_fill(mask[..., None], 0)
        out = attn(x.flatten(1, 2), hw, key_padding_mask=mask.flatten(1)).view(x.shape)
        expected = torch.stack([definition(*image) for image in zip(x, ~mask)])
        inputs = [x, *attn.parameters()]
        out, expected = (t.masked_fill(mask[..., None], 0) for t in (out, expected))
        torch.testing.assert_close(out, expected, rtol=tolerance, atol=tolerance)
        gradients = [torch.autograd.grad((t * cotangent).sum(), inputs) for t in (out, expected)]
        torch.testing.assert_close(*gradients, rtol=tolerance, atol=tolerance)

    return check


def shifted(maps: Tensor, real: Tensor, rows: int, columns: int) -> Tensor:
    """Return real neighbours of (H, W, C) at an offset, 0 where there is none."""
    out, (height, width) = torch.zeros_like(maps), real.shape
    for i in range(max(0, -rows), min(height, height - rows)):
        for j in range(max(0, -columns), min(width, width - columns)):
            if real[i + rows, j + columns]:
                out[i, j] = maps[i + rows, j + columns]
    return out


@pytest.fixture
def depthwise():
    """Return a function that convolves real tokens (H, W, C) with (C, K, K), one by one."""

    def convolve(maps: Tensor, real: Tensor, weight: Tensor) -> Tensor:
        reach = weight.shape[-1] // 2
        offsets = range(-reach, reach + 1)
        return sum(
            shifted(maps, real, i, j) * weight[:, i + reach, j + reach]
            for i in offsets
            for j in offsets
        )

    return convolve
