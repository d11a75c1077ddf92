import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

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


@settings(max_examples=25, deadline=None)
@given(
    b=st.integers(1, 3), h=st.integers(1, 3), height=st.integers(1, 7), width=st.integers(1, 7),
    d=st.sampled_from([4, 8, 20]), seed=st.integers(0, 99),
    feature_map=st.sampled_from(['elu+1', 'relu', 'softmax']),
    weights=st.sampled_from(['score', 'ones', 'random']),
)  # fmt: skip
def test_portable_equals_reference(b, h, height, width, d, seed, feature_map, weights):
    torch.manual_seed(seed)
    n = height * width
    q, k, v = torch.randn(3, b, h, n, d, dtype=torch.float64)
    padding = torch.rand(b, n) < 0.3
    given_weights = {
        'score': None,
        'ones': torch.ones(1, 1, 1, dtype=torch.float64),
        'random': torch.rand(h, n, dtype=torch.float64) + 0.1,
    }[weights]
    args = dict(
        rotary=Rotary((height, width), d),
        key_padding_mask=padding,
        feature_map=feature_map,
        token_weights=given_weights,
    )
    reference = rala_attention(q, k, v, **args, backend='reference')
    portable = rala_attention(q, k, v, **args, backend='torch')
    # relu can leave a normaliser of eps alone; compare on the scale of the values then.
    torch.testing.assert_close(portable, reference, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize('backend', BACKENDS)
def test_padding_gives_each_image_the_result_it_has_alone(backend):
    q, k, v = torch.randn(3, 1, 2, 6, 8, dtype=torch.float64)
    junk = 50 * torch.randn(3, 1, 2, 4, 8, dtype=torch.float64)
    padded = [torch.cat(pair, 2) for pair in zip((q, k, v), junk)]
    mask = torch.tensor([[False] * 6 + [True] * 4])
    alone = rala_attention(q, k, v, backend=backend)
    beside = rala_attention(*padded, key_padding_mask=mask, backend=backend)[:, :, :6]
    torch.testing.assert_close(beside, alone, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    'backend, dtype',
    [
        ('reference', torch.float32),
        ('torch', torch.float32),
        ('torch', torch.bfloat16),
        ('torch', torch.float16),
    ],
)
def test_all_padded_yields_zero_and_no_nan_gradient(backend, dtype):
    q, k, v = (x.requires_grad_() for x in torch.randn(3, 2, 2, 5, 8).to(dtype).unbind())
    mask = torch.tensor([[True] * 5, [False] * 5])
    out = rala_attention(q, k, v, key_padding_mask=mask, backend=backend)
    assert out.dtype == dtype
    assert (out[0] == 0).all() and (out[1] != 0).any()
    out.float().sum().backward()
    assert all(torch.isfinite(x.grad).all() for x in (q, k, v))


@pytest.mark.parametrize('dtype, tolerance', [(torch.float16, 3e-3), (torch.bfloat16, 2e-2)])
def test_half_precision_accumulates_in_float32(dtype, tolerance):
    # 16,384 tokens with large logits: sums in half precision would overflow or stall.
    q, k, v = (30 * torch.randn(3, 1, 1, 16384, 16)).to(dtype)
    exact = rala_attention(q.double(), k.double(), v.double(), backend='torch')
    for autocast in (False, True):
        with torch.autocast('cpu', dtype=torch.bfloat16, enabled=autocast):
            out = rala_attention(q, k, v, backend='torch')
        assert torch.isfinite(out).all()
        assert (out.double() - exact).norm() / exact.norm() < tolerance


def test_strided_views_of_a_fused_projection():
    qkv = torch.randn(2, 12, 3, 2, 8, dtype=torch.float64)
    q, k, v = qkv.permute(2, 0, 3, 1, 4)
    assert not q.is_contiguous()
    torch.testing.assert_close(
        rala_attention(q, k, v, backend='torch'),
        rala_attention(*(x.contiguous() for x in (q, k, v)), backend='reference'),
    )


def test_without_augmentation_it_is_plain_linear_attention():
    q, k, v = torch.randn(3, 1, 2, 9, 8, dtype=torch.float64)
    ones = torch.ones(1, 1, 1, dtype=torch.float64)
    out = rala_attention(q, k, v, token_weights=ones, eps=0)
    phi_q, phi_k = (torch.where(x > 0, x + 1, x.exp()) for x in (q, k))
    kernel = phi_q @ phi_k.mT
    torch.testing.assert_close(out, (kernel / kernel.sum(-1, keepdim=True)) @ v)


@pytest.mark.parametrize(
    'change, error, message',
    [
        (dict(k=torch.randn(1, 2, 5, 8)), ValueError, r'k has shape \(1, 2, 5, 8\)'),
        (dict(v=torch.randn(1, 2, 6, 8).double()), ValueError, 'v is torch.float64'),
        (dict(q=torch.randn(2, 6, 8)), ValueError, r'q must have shape .* got \(2, 6, 8\)'),
        (dict(rotary=Rotary((2, 2), 8)), ValueError, r'\(2, 2\) has 4 positions but q has 6'),
        (dict(rotary=Rotary((2, 3), 4)), ValueError, 'rotary.head_dim is 4, but q has 8 channels'),
        (dict(rotary=(torch.ones(6, 8),) * 2), TypeError, 'rotary must be a Rotary, got tuple'),
        (dict(key_padding_mask=torch.zeros(1, 6)), TypeError, 'must be bool'),
        (dict(key_padding_mask=torch.zeros(1, 5).bool()), ValueError, r'\(1, 6\), got \(1, 5\)'),
        (dict(feature_map='exp'), ValueError, "'exp'"),
        (dict(backend='quick'), ValueError, "'quick'"),
    ],
)
def test_bad_input_names_argument_and_value(change, error, message):
    q, k, v = torch.randn(3, 1, 2, 6, 8)
    with pytest.raises(error, match=message):
        rala_attention(**{**dict(q=q, k=k, v=v), **change})
