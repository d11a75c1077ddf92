import pytest
import torch

from mmlinattn.models.layers import AdditiveAttention
from mmlinattn.ops import additive_attention


@pytest.mark.parametrize('has_pos', [False, True])
def test_layer_shares_values_and_adds_queries(has_pos):
    attn = AdditiveAttention(16, 2).double()
    assert sum(p.numel() for p in attn.parameters()) == 3 * 16 * 17 - 16 + 16 + 2 * 16
    x, pos = torch.randn(2, 2, 12, 16, dtype=torch.float64)
    q, k = attn.in_proj(x + pos * has_pos).chunk(2, -1)
    v, _ = attn.in_proj(x).chunk(2, -1)
    heads = [t.unflatten(-1, (2, 8)).transpose(1, 2) for t in (q, k, v)]
    u = additive_attention(*heads, attn.w_q, attn.w_k, backend='reference')
    expected = attn.proj(u.transpose(1, 2).flatten(2)) + q
    torch.testing.assert_close(attn(x, (3, 4), pos if has_pos else None), expected)


@pytest.mark.parametrize(
    'change, message',
    [
        (dict(w_q=torch.randn(2, 5)), r'w_q must have shape \(heads, d\) = \(2, 4\).*\(2, 5\)'),
        (dict(w_k=torch.randn(3, 4)), r'w_k .*\(3, 4\)'),
        (dict(k=torch.randn(1, 2, 5, 4)), 'k has shape'),
    ],
)
def test_bad_input(change, message):
    q, k, v = torch.randn(3, 1, 2, 6, 4)
    w_q, w_k = torch.randn(2, 2, 4)
    with pytest.raises(ValueError, match=message):
        additive_attention(**{**dict(q=q, k=k, v=v, w_q=w_q, w_k=w_k), **change})


def test_a_projected_gate_needs_own_values():
    with pytest.raises(ValueError, match="gate='proj' has no projection"):
        AdditiveAttention(16, 2, gate='proj')
