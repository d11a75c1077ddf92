"""Residual branches: one fused sum equals drop, scale and addition one after the other."""

import pytest
import torch
from mmcv.cnn.bricks import DropPath
from torch import nn

from mmlinattn.models.layers import add_branch
from mmlinattn.ops import PackedShapes


@pytest.mark.parametrize('scaled', [False, True])
@pytest.mark.parametrize('training', [False, True])
def test_equals_the_formula_with_gradients(training, scaled):
    drop_path = DropPath(0.4).train(training)
    x, branch = torch.randn(2, 64, 3, 8, dtype=torch.float64).unbind()
    scale = torch.randn(8, dtype=torch.float64)
    leaves = [t.requires_grad_() for t in (x, branch, scale)]
    out = add_branch(x, branch, drop_path, scale if scaled else None)
    kept = ((out - x).detach().abs().amax((1, 2)) > 0).double()[:, None, None]  # [B, 1, 1]
    assert kept.all() or training
    assert not training or 20 < kept.sum() < 55
    factor = kept / 0.6 if training else kept
    expected = x + branch * factor * (scale if scaled else 1)
    torch.testing.assert_close(out, expected)
    leaves = leaves if scaled else leaves[:2]
    grad = torch.randn_like(out)
    torch.testing.assert_close(*(torch.autograd.grad(o, leaves, grad) for o in (out, expected)))


def test_packed_images_are_dropped_by_themselves():
    packed = PackedShapes([(2, 3), (1, 4), (3, 3)] * 20)
    x = torch.zeros(1, packed.num_tokens, 4)
    out = add_branch(x, torch.ones_like(x), DropPath(0.5).train(), packed=packed)
    means = [part.unique().tolist() for part in packed.split(out)]
    assert all(values in ([0.0], [2.0]) for values in means)
    assert len({*map(tuple, means)}) == 2


def test_another_module_is_called():
    x = torch.ones(1, 2, 4)
    assert torch.equal(add_branch(x, x, nn.Flatten(2)), 2 * x)
    assert torch.equal(add_branch(x, x, nn.Dropout(1.0)), x)
