import pytest
import torch

from mmlinattn.models.layers import GatedPositionalAttention, TokenLayout


def test_heads_initially_attend_to_nine_neighbours():
    attn = GatedPositionalAttention(72, 9).double()
    attn.positions.data *= 5
    v = torch.zeros(1, 9, 25, 8, dtype=torch.float64)
    v[..., 0] = torch.arange(25)
    seen = attn.positional_attention(v, TokenLayout((5, 5)))[
        0, :, 12, 0
    ]  # by the token in the middle
    assert sorted(seen.round().int().tolist()) == [6, 7, 8, 11, 12, 13, 16, 17, 18]
    assert (seen - seen.round()).abs().max() < 0.06


def test_heads_beyond_a_square_number_start_with_small_positions():
    positions = GatedPositionalAttention(48, 6).positions.detach()
    expected = [[x, y, -1] for x in (-1, 1) for y in (-1, 1)]
    assert positions[:4].tolist() == expected
    assert (positions[4:] != 0).all() and positions[4:].abs().max() < 0.2


@pytest.mark.parametrize('gate', [None, 'proj'])
def test_values_start_as_the_identity_also_in_a_backbone(gate):
    attn = GatedPositionalAttention(16, 4, gate=gate)
    x = torch.randn(1, 9, 16)
    for _ in range(2):
        torch.testing.assert_close(attn.in_proj(x)[..., 32:48], x)
        attn.init_projections(lambda layer: torch.nn.init.normal_(layer.weight))
    assert attn.in_proj.weight[:32].std() > 0.5  # queries and keys are those of the backbone


def test_position_part_of_a_large_map_is_not_n_by_n():
    v = torch.randn(1, 2, 256 * 256, 4)
    out = GatedPositionalAttention(8, 2).positional_attention(v, TokenLayout((256, 256)))
    assert torch.isfinite(out).all()  # an N x N matrix would take 32 GiB


def test_gradients_of_padding_far_from_real_tokens():
    """Test that the totals of such queries underflow to 0 in float32, not to infinite gradients."""
    attn = GatedPositionalAttention(64, 4)
    x = torch.randn(2, 160, 64, requires_grad=True)
    mask = torch.zeros(2, 4, 40, dtype=torch.bool)
    mask[1, :, 8:] = True
    out = attn(x, (4, 40), key_padding_mask=mask.flatten(1))
    (out * torch.randn_like(out) * 2**16).sum().backward()
    leaves = {'x': x, **dict(attn.named_parameters())}
    assert [name for name, leaf in leaves.items() if not leaf.grad.isfinite().all()] == []


def test_real_tokens_whose_head_looks_into_padding():
    """Test that their softmax is over the real keys, however small the weights of those are."""
    attn = GatedPositionalAttention(16, 1).double()
    attn.positions.data[:] = torch.tensor([17, 0, -1])  # at the key 8.5 columns further right
    maps = torch.randn(1, 3, 24, 16, dtype=torch.float64)
    mask = torch.zeros(1, 3, 24, dtype=torch.bool)
    mask[:, :, 5:] = True
    out = attn(maps.flatten(1, 2), (3, 24), key_padding_mask=mask.flatten(1))
    cropped = attn(maps[:, :, :5].flatten(1, 2), (3, 5))
    torch.testing.assert_close(out[~mask.flatten(1)], cropped.flatten(0, 1))
