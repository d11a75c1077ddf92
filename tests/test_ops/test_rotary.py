import cmath

import pytest
import torch

from mmlinattn.ops import apply_rotary, rotary_tables


def test_rotation_is_multiplication_by_a_complex_phase():
    height, width, d = 3, 4, 16
    x = torch.randn(height * width, d, dtype=torch.float64)
    turned = apply_rotary(x, rotary_tables((height, width), d, torch.float64))
    for i in range(height):
        for j in range(width):
            for pair in range(d // 2):
                t, place = (pair, i) if pair < d // 4 else (pair - d // 4, j)
                angle = place * 10000 ** (-t / (d / 4 - 1))
                z = complex(*x[i * width + j, 2 * pair : 2 * pair + 2]) * cmath.exp(1j * angle)
                got = complex(*turned[i * width + j, 2 * pair : 2 * pair + 2])
                assert abs(z - got) < 1e-12


def test_products_depend_on_relative_position_only():
    q, k = torch.randn(2, 8, dtype=torch.float64)
    rotary = rotary_tables((6, 6), 8, torch.float64)
    q, k = (apply_rotary(x.expand(36, 8), rotary).view(6, 6, 8) for x in (q, k))
    torch.testing.assert_close(q[1, 2] @ k[3, 1], q[2, 4] @ k[4, 3])
    assert (q[1, 2] @ k[3, 1] - q[1, 2] @ k[4, 1]).abs() > 1e-3


def test_head_dim_four_has_one_angle():
    sin, _ = rotary_tables((2, 2), 4)
    assert torch.isfinite(sin).all() and sin[1, 2] == torch.sin(torch.tensor(1.0))


def test_half_tables_keep_large_positions_apart():
    sin, _ = rotary_tables((512, 1), 8, torch.float16)
    exact, _ = rotary_tables((512, 1), 8, torch.float64)
    assert (sin.double() - exact).abs().max() < 1e-3


@pytest.mark.parametrize('dim', [2, 6, 10])
def test_head_dim_must_split_by_four(dim):
    with pytest.raises(ValueError, match=f'head_dim must .* got {dim}'):
        rotary_tables((2, 2), dim)
