import pytest
import torch

from mmlinattn.models.layers import (
    MALA,
    RALA,
    map_to_tokens,
    softmax_attention,
    tokens_to_map,
)
from mmlinattn.ops import PackedShapes, Rotary, rala_attention

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


GATES = {None: lambda x: 1, 'identity': lambda x: x, 'tanh': lambda x: 2 / (1 + (-2 * x).exp()) - 1}


@pytest.mark.parametrize('gate', GATES)
def test_gates_of_table_9(gate):
    attn = RALA(32, 2, gate=gate).double()
    x = torch.randn(2, 30, 32, dtype=torch.float64)
    q, k, v = attn.in_proj(x).chunk(3, -1)
    heads = [t.unflatten(-1, (2, 16)).transpose(1, 2) for t in (q, k, v)]
    out = rala_attention(*heads, rotary=Rotary(HW, 16), backend='reference')
    local = attn.lepe(v.mT.unflatten(-1, HW)).flatten(2).mT
    expected = attn.proj((out.transpose(1, 2).flatten(2) + local) * GATES[gate](x))
    torch.testing.assert_close(attn(x, HW), expected, rtol=1e-9, atol=1e-9)


KERNELS = {'relu': lambda x: x.clamp(min=0), 'softmax': lambda x: x.exp() / x.exp().sum(-1, True)}


@pytest.mark.parametrize('kernel', KERNELS)
@pytest.mark.parametrize('backend', ['reference', 'torch'])
def test_kernels_of_table_9(kernel, backend):
    """Equations 6 and 7 with another kernel, pair by pair."""
    q, k, v = torch.randn(3, 1, 1, 12, 8, dtype=torch.float64)
    out = rala_attention(q, k, v, feature_map=kernel, backend=backend)[0, 0]
    q, k, v = KERNELS[kernel](q)[0, 0], KERNELS[kernel](k)[0, 0], v[0, 0]
    weights = 12 * (k @ q.mean(0) / 8**0.5).softmax(0)
    pairs = torch.stack([w * torch.outer(kj, vj) for w, kj, vj in zip(weights, k, v)]).mean(0)
    normaliser = q @ (weights[:, None] * k).mean(0) + 1e-6
    torch.testing.assert_close(out, q @ pairs / normaliser[:, None], rtol=1e-10, atol=1e-10)


class OwnAttend(RALA):
    def attend(self, q, k, v, layout):
        return softmax_attention(q, k, v, layout.key_padding_mask)


class OwnProject(MALA):
    def project(self, x, query_pos, layout):
        q, k, v, gate = super().project(x, query_pos, layout)
        maps = tokens_to_map(v, layout.hw_shape)
        return q, k, map_to_tokens(maps.roll(1, -1)), gate


@pytest.mark.parametrize('kind', [OwnAttend, OwnProject])
def test_subclasses_attend_packed_images_one_by_one(kind):
    """RALA and MALA take packed images at once, which their subclasses do not know of."""
    layer, packed = kind(32, 2).eval(), PackedShapes([(3, 5), (2, 2)])
    x = torch.randn(1, packed.num_tokens, 32)
    alone = [layer(part, shape) for part, shape in zip(packed.split(x), packed.hw_shapes)]
    torch.testing.assert_close(layer(x, packed), torch.cat(alone, 1))
