import pytest
import torch

from mmlinattn.ops import Rotary, mala_attention

BACKENDS = ('reference', 'torch')


def loop_mala(q, k, v, angles=None, padding=None, eps=1e-6):
    """The definition with Python loops over tokens: (N, d) each."""
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

    q, k, scale = phi(q), phi(k), q.shape[1] ** -0.5
    out = torch.zeros_like(v)
    for i in range(len(q)):
        z = sum(scale * q[i] @ k[j] for j in real) / len(real)
        for j in real:
            similarity = scale * turn(q[i], i) @ turn(k[j], j)
            out[i] += ((1 + 1 / (z + eps)) * similarity - z) * v[j] / len(real)
    return out


@pytest.mark.parametrize('backend', BACKENDS)
@pytest.mark.parametrize('hw', [(1, 1), (2, 3), (1, 5)])
def test_matches_the_definition_written_as_loops(backend, hw):
    n, d = hw[0] * hw[1], 8
    q, k, v = torch.randn(3, 2, 2, n, d, dtype=torch.float64)
    rotary = Rotary(hw, d)
    padding = torch.zeros(2, n, dtype=torch.bool)
    padding[1, n // 2 :] = True
    out = mala_attention(q, k, v, rotary=rotary, key_padding_mask=padding, backend=backend)
    for b in range(2):
        for h in range(2):
            args = q[b, h], k[b, h], v[b, h], rotary.angles(torch.float64), padding[b]
            torch.testing.assert_close(out[b, h], loop_mala(*args), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize('backend', BACKENDS)
def test_gradients_against_finite_differences(backend):
    q, k, v = torch.randn(3, 1, 1, 4, 4, dtype=torch.float64).requires_grad_().unbind()
    padding = torch.tensor([[False, False, True, False]])
    assert torch.autograd.gradcheck(
        lambda *qkv: mala_attention(
            *qkv, rotary=Rotary((2, 2), 4), key_padding_mask=padding, backend=backend
        ),
        (q, k, v),
    )


def test_weights_sum_to_one_and_follow_the_length_of_the_query():
    """What linear attention lacks: a longer query has sharper weights."""
    q, k = torch.randn(2, 1, 1, 12, 8, dtype=torch.float64)
    q = q.relu() + 1  # phi then adds 1: its length can be scaled
    identity = torch.eye(12, dtype=torch.float64)[None, None]
    spreads = []
    for scale in (1, 4):
        weights = mala_attention(scale * q, k, identity, eps=0)
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
        spreads.append(weights.std(-1))
    assert (spreads[1] > 2 * spreads[0]).all()
