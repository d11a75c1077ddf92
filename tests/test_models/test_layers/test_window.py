"""Options of window attention; Swin and recorded cases have its outputs."""

import pytest
import torch

from mmlinattn.models.layers import WindowAttention


def test_options():
    attn = WindowAttention(8, 2, window_size=2, relative_bias=False, qkv_bias=False, shift=True)
    assert not any('relative' in name for name, _ in attn.named_parameters())
    assert attn(torch.randn(1, 15, 8), (3, 5)).shape == (1, 15, 8)
    with pytest.raises(ValueError, match='WindowAttention does not support extra tokens'):
        attn(torch.randn(1, 16, 8), (3, 5), num_extra_tokens=1)
