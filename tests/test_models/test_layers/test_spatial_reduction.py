import pytest
import torch
import torch.nn.functional as F

from mmlinattn.models.layers import SpatialReductionAttention


def test_keys_and_values_are_reduced():
    attn = SpatialReductionAttention(16, 2, sr_ratio=2).double()
    x, pos = torch.randn(2, 1, 30, 16, dtype=torch.float64)

    def reduced(tokens):
        return attn.norm(attn.sr(tokens.mT.reshape(1, 16, 5, 6)).flatten(2).mT)

    w_q, w_k, w_v = attn.in_proj.weight.chunk(3)
    b_q, b_k, b_v = attn.in_proj.bias.chunk(3)
    heads = [
        F.linear(tokens, weight, bias).unflatten(-1, (2, 8)).transpose(1, 2)
        for tokens, weight, bias in (
            (x + pos, w_q, b_q), (reduced(x + pos), w_k, b_k), (reduced(x), w_v, b_v),
        )
    ]  # fmt: skip
    weights = (heads[0] @ heads[1].mT / 8**0.5).softmax(-1)
    assert weights.shape[-1] == 6  # 2 x 3 cells, the last row is dropped
    expected = attn.proj((weights @ heads[2]).transpose(1, 2).flatten(2))
    torch.testing.assert_close(attn(x, (5, 6), pos), expected)


def test_cells_of_padding_are_masked():
    attn = SpatialReductionAttention(16, 2, sr_ratio=2).double()
    x = torch.randn(1, 4, 4, 16, dtype=torch.float64)
    wide = torch.cat([x, 50 * torch.randn(1, 4, 3, 16, dtype=torch.float64)], 2)
    mask = torch.arange(7) >= 4
    out = attn(wide.flatten(1, 2), (4, 7), key_padding_mask=mask.repeat(4)[None])
    alone = attn(x.flatten(1, 2), (4, 4))
    torch.testing.assert_close(out.unflatten(1, (4, 7))[:, :, :4].flatten(1, 2), alone)


@pytest.mark.parametrize(
    'options, message',
    [
        (dict(sr_ratio=0), 'sr_ratio must be a positive integer, got 0'),
        (dict(sr_ratio=1.5), 'sr_ratio must be a positive integer, got 1.5'),
        (dict(attn_drop=2.0), 'attn_drop must be a number from 0 to 1, got 2.0'),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        SpatialReductionAttention(16, 2, **options)
