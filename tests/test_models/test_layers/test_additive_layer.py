import torch
import torch.nn.functional as F

from mmlinattn.models.layers import AdditiveAttention
from mmlinattn.ops import additive_attention


def test_layer_equals_its_formula():
    attn = AdditiveAttention(16, 2).double()
    x, pos = torch.randn(2, 2, 12, 16, dtype=torch.float64)
    parts = attn.in_proj.weight.split(16), attn.in_proj.bias.split(16)
    q, k, v = (
        F.linear(tokens, parts[0][i], parts[1][i])
        for tokens, i in ((x + pos, 0), (x + pos, 1), (x, 0))
    )
    heads = [t.unflatten(-1, (2, 8)).transpose(1, 2) for t in (q, k, v)]
    out = additive_attention(*heads, attn.w_q, attn.w_k, backend='reference')
    expected = attn.proj(out.transpose(1, 2).flatten(2)) + q
    torch.testing.assert_close(attn(x, (3, 4), pos), expected)
