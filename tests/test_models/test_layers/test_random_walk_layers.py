import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from mmlinattn.models.layers import RWGKA, RWGKP, TokenLayout
from mmlinattn.models.layers.pooling import cell_masks, pool_tokens
from mmlinattn.models.layers.random_walk import pooling_grid
from mmlinattn.ops import random_walk_attention


def test_anchors_are_initialised_by_xavier_per_head():
    anchors = RWGKA(256, 4, num_anchors=128).anchors_q.detach()
    limit = (6 / (128 + 64)) ** 0.5
    assert 0.99 * limit < anchors.abs().max() <= limit


@pytest.mark.parametrize('steps', [None, 2])
def test_layer_equals_its_formula(steps):
    attn = RWGKA(16, 2, num_anchors=5, decay=0.5, steps=steps).double()
    x = torch.randn(2, 12, 16, dtype=torch.float64)
    q, k, v = attn.in_proj(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
    walked = random_walk_attention(
        q, k, v, attn.anchors_q, attn.anchors_q, decay=0.5, steps=steps, backend='reference'
    )
    torch.testing.assert_close(attn(x, (3, 4)), attn.proj(walked.transpose(1, 2).flatten(2)))


def test_padding_is_excluded_from_pooled_anchors():
    attn = RWGKP(16, 2, num_anchors=4).double()
    q = torch.randn(1, 2, 24, 8, dtype=torch.float64)
    mask = torch.zeros(1, 6, 4, dtype=torch.bool)
    mask[:, :, 3] = True
    anchors, _ = attn.anchors(q, q, TokenLayout((6, 4), mask.flatten(1)))
    cells = q.unflatten(2, (2, 3, 2, 2)).mean((3, 5))
    narrow = q.unflatten(2, (2, 3, 4))[..., 2, :].mean(3)  # the only real column of these cells
    torch.testing.assert_close(anchors.unflatten(2, (2, 2))[..., 1, :], narrow)
    torch.testing.assert_close(anchors.unflatten(2, (2, 2))[..., 0, :], cells[..., 0, :])
    mask[:, :3] = True
    anchors, _ = attn.anchors(q, q, TokenLayout((6, 4), mask.flatten(1)))
    assert (anchors[:, :, :2] == 0).all()  # the upper cells are padding only


@given(st.integers(1, 200), st.integers(1, 300), st.integers(1, 300))
def test_grid_for_any_map_and_number_of_anchors(cells, height, width):
    rows, columns = pooling_grid(cells, (height, width))
    assert 1 <= rows <= height and 1 <= columns <= width
    assert rows * columns <= cells
    if height != width:
        assert pooling_grid(cells, (width, height)) == (columns, rows)


@pytest.mark.parametrize(
    'cells, hw, grid',
    [(64, (256, 256), (8, 8)), (64, (64, 256), (4, 16)), (64, (2, 2), (2, 2)), (1, (9, 9), (1, 1))],
)
def test_grid(cells, hw, grid):
    assert pooling_grid(cells, hw) == grid


@pytest.mark.parametrize('masked', [False, True])
@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_half_types_pool_without_a_copy_in_float32(dtype, masked):
    """Test the weight 1/3 of a column, which half types round.

    Without a correction it would enlarge all averages, by 0.2% in bfloat16.
    """
    qkv = (1 + torch.rand(2, 6 * 9, 3, 2, 8)).to(dtype)
    x = qkv.permute(2, 0, 3, 1, 4)[0]  # [B, heads, N, d], a strided view
    mask = None
    if masked:
        mask = torch.zeros(2, 54, dtype=torch.bool)
        mask[0, 40:] = True
    rows, columns = cell_masks(2, 6, x.device), cell_masks(3, 9, x.device)
    sizes = []

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            out = function(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor) and out.dtype == torch.float32:
                sizes.append(out.numel())
            return out

    with Sizes():
        pooled = pool_tokens(x, TokenLayout((6, 9), mask), rows, columns)
    # float16 products on a CPU take longer than the copy.
    assert dtype == torch.float16 or max(sizes) < x.numel() / 2
    keep = torch.ones(2, 54, dtype=torch.float64) if mask is None else (~mask).double()
    cells = torch.einsum('rh,cw->rchw', rows.double(), columns.double()).flatten(2).flatten(0, 1)
    weight = cells[None] * keep[:, None]  # [B, cells, N]
    total = weight.sum(-1, keepdim=True)[:, None].clamp(min=1)
    exact = torch.einsum('bcn,bhnd->bhcd', weight, x.double()) / total
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(pooled.double(), exact, rtol=1.5 * eps, atol=0)
    assert abs((pooled[exact > 0] / exact[exact > 0] - 1).mean()) < eps / 16
