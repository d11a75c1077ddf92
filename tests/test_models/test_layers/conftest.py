"""Fixtures for tests that compare an attention with its definition."""

import pytest
import torch

from mmlinattn.models.layers import BaseAttention, TokenLayout

DIM, HEADS = 8, 2


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
