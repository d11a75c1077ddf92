import torch

from mmlinattn.models.layers import SpatialReductionAttention


def test_cells_of_padding_are_masked():
    attn = SpatialReductionAttention(16, 2, sr_ratio=2).double()
    x = torch.randn(1, 4, 4, 16, dtype=torch.float64)
    wide = torch.cat([x, 50 * torch.randn(1, 4, 3, 16, dtype=torch.float64)], 2)
    mask = torch.arange(7) >= 4
    out = attn(wide.flatten(1, 2), (4, 7), key_padding_mask=mask.repeat(4)[None])
    alone = attn(x.flatten(1, 2), (4, 4))
    torch.testing.assert_close(out.unflatten(1, (4, 7))[:, :, :4].flatten(1, 2), alone)
