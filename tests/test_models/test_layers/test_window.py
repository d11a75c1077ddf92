"""Window attention compared with its definition, one query and one key at a time."""

import pytest
import torch

from mmlinattn.models.layers import WindowAttention

HEADS, DIM = 2, 4


def window_of(place: int, size: int, side: int, shift: bool):
    """Return the window of a position and whether the cyclic shift has wrapped it around."""
    if size <= side:
        return 0, 0
    count = -(-size // side)
    moved = place - (side // 2 if shift else 0)
    return moved % (count * side) // side, moved < 0


def place_in(place: int, size: int, side: int, shift: bool) -> int:
    if size <= side:
        return place
    filled = -(-size // side) * side
    return (place - (side // 2 if shift else 0)) % filled % side


def definition(attn, x, hw, mask):
    """Compute the attention N x N, including the keys that pad the windows."""
    side, shift = attn.window_size, attn.shift
    filled = [size if size <= side else -(-size // side) * side for size in hw]
    q, k, v = attn.in_proj(x).chunk(3, -1)
    fill = attn.in_proj(torch.zeros_like(x[0, 0])).chunk(3)
    keys = [(r, c) for r in range(filled[0]) for c in range(filled[1])]
    out = torch.zeros_like(x)
    for b in range(len(x)):
        for row in range(hw[0]):
            for column in range(hw[1]):
                here = [window_of(p, s, side, shift) for p, s in zip((row, column), hw)]
                logits, values = [], []
                for r, c in keys:
                    if [window_of(p, s, side, shift) for p, s in zip((r, c), hw)] != here:
                        continue
                    inside = r < hw[0] and c < hw[1]
                    j = r * hw[1] + c
                    if inside and mask[b, j]:
                        continue
                    key = (k[b, j] if inside else fill[1]).view(HEADS, DIM)
                    offset = [
                        place_in(p, s, side, shift) - place_in(o, s, side, shift) + side - 1
                        for p, o, s in zip((row, column), (r, c), hw)
                    ]
                    query = q[b, row * hw[1] + column].view(HEADS, DIM)
                    logit = (query * key).sum(-1) / DIM**0.5
                    logits.append(
                        logit + attn.relative_bias[offset[0] * (2 * side - 1) + offset[1]]
                    )
                    values.append((v[b, j] if inside else fill[2]).view(HEADS, DIM))
                if logits:
                    weights = torch.stack(logits).softmax(0)[..., None]
                    out[b, row * hw[1] + column] = (weights * torch.stack(values)).sum(0).flatten()
    return attn.proj(out)


@pytest.mark.parametrize('shift', [False, True])
@pytest.mark.parametrize('hw', [(4, 6), (5, 7), (2, 5), (1, 1)])
def test_equals_its_definition(hw, shift):
    attn = WindowAttention(HEADS * DIM, HEADS, window_size=3, shift=shift).double()
    torch.nn.init.normal_(attn.relative_bias)
    torch.nn.init.normal_(attn.in_proj.bias)
    x = torch.randn(2, hw[0] * hw[1], HEADS * DIM, dtype=torch.float64, requires_grad=True)
    mask = torch.zeros(2, hw[0] * hw[1], dtype=torch.bool)
    mask[1, 1::3] = True
    out, expected = attn(x, hw, key_padding_mask=mask), definition(attn, x, hw, mask)
    torch.testing.assert_close(out[~mask], expected[~mask])
    weight = torch.randn_like(out) * ~mask[..., None]
    inputs = [x, *attn.parameters()]
    for a, b in zip(*(torch.autograd.grad((o * weight).sum(), inputs) for o in (out, expected))):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)


def test_options():
    attn = WindowAttention(8, 2, window_size=2, relative_bias=False, qkv_bias=False, shift=True)
    assert not any('relative' in name for name, _ in attn.named_parameters())
    assert attn(torch.randn(1, 15, 8), (3, 5)).shape == (1, 15, 8)
    with pytest.raises(ValueError, match='WindowAttention does not support extra tokens'):
        attn(torch.randn(1, 16, 8), (3, 5), num_extra_tokens=1)
    for size in (0, 2.0):
        with pytest.raises(ValueError, match=f'window_size must be a positive .* got {size}'):
            WindowAttention(8, 2, window_size=size)
