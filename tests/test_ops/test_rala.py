import pytest
import torch

from mmlinattn.ops import Rotary, rala_attention


@pytest.mark.parametrize('backend, tolerance', [('reference', 1e-12), ('torch', 1e-10)])
def test_recorded_output_and_gradients(golden, backend, tolerance):
    t, _ = golden('attention_ops')
    q, k, v = (t[f'rala.in.{n}'].clone().requires_grad_() for n in 'qkv')
    rotary = Rotary((7, 9), 8)  # whose tables are compared in test_rotary.py
    out = rala_attention(q, k, v, rotary=rotary, backend=backend)
    (out * t['rala.in.cotangent']).sum().backward()
    assert (out - t['rala.out']).abs().max() < tolerance
    for name, tensor in zip('qkv', (q, k, v)):
        assert (tensor.grad - t[f'rala.grad.{name}']).abs().max() < tolerance, name


def test_without_augmentation_it_is_plain_linear_attention():
    q, k, v = torch.randn(3, 1, 2, 9, 8, dtype=torch.float64)
    ones = torch.ones(1, 1, 1, dtype=torch.float64)
    out = rala_attention(q, k, v, token_weights=ones, eps=0)
    phi_q, phi_k = (torch.where(x > 0, x + 1, x.exp()) for x in (q, k))
    kernel = phi_q @ phi_k.mT
    torch.testing.assert_close(out, (kernel / kernel.sum(-1, keepdim=True)) @ v)
