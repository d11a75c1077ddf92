import pytest
import torch

from mmlinattn.models.layers import RALA
from mmlinattn.ops import Rotary, rala_attention

HW = (5, 6)


def projected(attn, x):
    q, k, v, gate = attn.in_proj(x).chunk(4, -1)
    heads = [t.unflatten(-1, (2, 16)).transpose(1, 2) for t in (q, k, v)]
    local = attn.lepe(v.mT.unflatten(-1, HW)).flatten(2).mT
    return heads, local, gate


@pytest.mark.parametrize('kind', ['score', None, 'learnable'])
def test_layer_equals_its_formula(kind):
    num_tokens = 30 if kind == 'learnable' else None
    attn = RALA(32, 2, kv_augmentation=kind, num_tokens=num_tokens).double()
    x, weights = torch.randn(2, 30, 32, dtype=torch.float64), None
    if kind is None:
        weights = torch.ones(1, 1, 30, dtype=torch.float64)
    elif kind == 'learnable':
        torch.nn.init.normal_(attn.token_logits)
        weights = 30 * attn.token_logits.softmax(-1)  # mean 1
    heads, local, gate = projected(attn, x)
    tables = Rotary(HW, 16)
    out = rala_attention(*heads, rotary=tables, token_weights=weights, backend='reference')
    expected = attn.proj((out.transpose(1, 2).flatten(2) + local) * gate)
    torch.testing.assert_close(attn(x, HW), expected, rtol=1e-9, atol=1e-9)


def test_learnable_weights_are_initially_equal():
    learnable = RALA(32, 2, kv_augmentation='learnable', num_tokens=30).double()
    plain = RALA(32, 2, kv_augmentation=None).double()
    plain.load_state_dict(learnable.state_dict(), strict=False)
    x = torch.randn(2, 30, 32, dtype=torch.float64)
    torch.testing.assert_close(learnable(x, HW), plain(x, HW))
