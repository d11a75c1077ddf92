"""What the GFLOPs of table 3 of the RWGKA paper count, in multiply-accumulates."""

import pytest
import torch
from torch import nn

from mmlinattn.analysis import analyse
from mmlinattn.models.layers import build_attention

DIMS, HEADS = 768, 12  # the base size of the ViT-VQGAN paper; SS has 512 and 8


class Layer(nn.Module):
    """One attention layer on a map of tokens; the image only starts it."""

    def __init__(self, attn_cfg, side: int) -> None:
        super().__init__()
        self.attn, self.side = build_attention(attn_cfg, DIMS, HEADS), side

    def forward(self, image):
        tokens = torch.zeros(1, self.side**2, DIMS, dtype=image.dtype, device=image.device)
        return self.attn(tokens, (self.side, self.side))


def products(attention: str, tokens: int) -> float:
    """G of all matrix products of a layer, written out."""
    head = DIMS // HEADS
    found = 4 * DIMS**2 * tokens  # queries, keys, values and the output
    if attention == 'softmax':
        found += 2 * tokens**2 * DIMS
    elif attention == 'slinear':
        found += 2 * tokens * head * DIMS
    elif attention == 'nystrom':  # 256 landmarks, in the order (a pinv(b)) (c v)
        marks = 256
        found += 4 * tokens * marks * DIMS + HEADS * tokens * marks**2 + marks**2 * DIMS
        found += 24 * HEADS * marks**3 + 33 * tokens * DIMS  # 6 iterations; the convolution
    elif attention == 'rwgka':  # 64 anchors: 6 products, and one more of the same size
        found += 7 * tokens * 64 * DIMS + 64**2 * DIMS
    return found / 1e9


@pytest.mark.parametrize(
    ('attention', 'tokens', 'paper'),
    [
        ('softmax', 1024, 4.03), ('nystrom', 1024, 8.94), ('rwgka', 1024, 2.78),
        ('slinear', 4096, 10.08), ('nystrom', 4096, 21.09), ('rwgka', 4096, 11.09),
    ],
)  # fmt: skip
def test_the_table_is_of_one_layer_of_768_channels(attention, tokens, paper):
    assert products(attention, tokens) == pytest.approx(paper, abs=0.017)


@pytest.mark.parametrize(
    ('attn_cfg', 'attention', 'side'),
    [('SoftmaxAttention', 'softmax', 32), ('EfficientAttention', 'slinear', 64)],
)
def test_layers_here_have_these_products(attn_cfg, attention, side):
    cost = analyse(Layer(attn_cfg, side), (32, 32))
    assert cost.total / 1e9 == pytest.approx(products(attention, side**2), rel=1e-3)
