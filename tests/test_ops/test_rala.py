import math

import pytest
import torch

from mmlinattn.ops import Rotary, rala_attention

BACKENDS = ('reference', 'torch')


def loop_rala(q, k, v, angles=None, padding=None, eps=1e-6):
    """The definition written out with Python loops over tokens: (N, d) each."""
    real = [i for i in range(len(q)) if padding is None or not padding[i]]
    if not real:
        return torch.zeros_like(v)

    def phi(x):
        return torch.where(x > 0, x + 1, x.exp())

    def turn(x, i):
        if angles is None:
            return x
        out = x.clone()
        for t in range(0, len(x), 2):
            c, s = angles[i, t // 2]
            out[t], out[t + 1] = x[t] * c - x[t + 1] * s, x[t + 1] * c + x[t] * s
        return out

    q, k = phi(q), phi(k)
    mean_q = sum(q[i] for i in real) / len(real)
    scores = torch.stack([mean_q @ k[j] / math.sqrt(q.shape[1]) for j in real])
    weights = len(real) * scores.softmax(0)
    out = torch.zeros_like(v)
    for i in range(len(q)):
        denominator = q[i] @ sum(w * k[j] for w, j in zip(weights, real)) / len(real) + eps
        for w, j in zip(weights, real):
            out[i] += turn(q[i], i) @ turn(w * k[j], j) * v[j] / len(real) / denominator
    return out


@pytest.mark.parametrize('backend', BACKENDS)
@pytest.mark.parametrize('hw', [(1, 1), (2, 3), (1, 5)])
def test_matches_the_definition_written_as_loops(backend, hw):
    n, d = hw[0] * hw[1], 8
    q, k, v = torch.randn(3, 2, 2, n, d, dtype=torch.float64)
    rotary = Rotary(hw, d)
    angles = rotary.angles(torch.float64)
    padding = torch.zeros(2, n, dtype=torch.bool)
    padding[1, n // 2 :] = True
    out = rala_attention(q, k, v, rotary=rotary, key_padding_mask=padding, backend=backend)
    for b in range(2):
        for h in range(2):
            expected = loop_rala(q[b, h], k[b, h], v[b, h], angles, padding[b])
            torch.testing.assert_close(out[b, h], expected, rtol=1e-12, atol=1e-12)


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


@pytest.mark.parametrize('backend', BACKENDS)
def test_gradients_against_finite_differences(backend):
    q, k, v = torch.randn(3, 1, 1, 4, 4, dtype=torch.float64).requires_grad_().unbind()
    rotary = Rotary((2, 2), 4)
    padding = torch.tensor([[False, False, True, False]])
    assert torch.autograd.gradcheck(
        lambda *qkv: rala_attention(*qkv, rotary=rotary, key_padding_mask=padding, backend=backend),
        (q, k, v),
    )


def test_without_augmentation_it_is_plain_linear_attention():
    q, k, v = torch.randn(3, 1, 2, 9, 8, dtype=torch.float64)
    ones = torch.ones(1, 1, 1, dtype=torch.float64)
    out = rala_attention(q, k, v, token_weights=ones, eps=0)
    phi_q, phi_k = (torch.where(x > 0, x + 1, x.exp()) for x in (q, k))
    kernel = phi_q @ phi_k.mT
    torch.testing.assert_close(out, (kernel / kernel.sum(-1, keepdim=True)) @ v)
