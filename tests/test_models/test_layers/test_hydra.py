import torch

from mmlinattn.models.layers import HydraAttention, TokenLayout


def test_equals_attention_with_one_head_per_channel(defined_by, dims):
    def definition(q, k, v, places):
        q, k = (x / x.square().sum((0, 2), keepdim=True).sqrt() for x in (q, k))
        kernels = torch.einsum('hid,hjd->hdij', q, k)  # an N x N kernel per channel
        return torch.einsum('hdij,hjd->hid', kernels, v)

    defined_by(HydraAttention(**dims), definition)


def test_tokens_of_zeros_have_bounded_gradients(dims):
    q, k, v = (x.requires_grad_() for x in torch.zeros(3, 1, 2, 6, 8))
    out = HydraAttention(**dims).attend(q, k, v + 1, TokenLayout((2, 3)))
    out.sum().backward()
    assert (out == 0).all() and all(x.grad.abs().max() < 1e7 for x in (q, k, v))
