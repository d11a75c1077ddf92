"""Shares of a backbone's time."""

import re

import pytest

from benchmarks import profile_backbones


@pytest.mark.parametrize('bf16', [False, True])
def test_shares_are_of_all_the_time(monkeypatch, capsys, bf16):
    monkeypatch.setattr(profile_backbones, 'SIDE', 64)
    arguments = ['--backbones', 'mit-b0-rwgka', '--images', '64x96', '--rounds', '1']
    assert profile_backbones.main(arguments + ['--bf16'] * bf16) == 0
    lines = capsys.readouterr().out.splitlines()
    cells = re.findall(r'[^|]+', lines[-1])
    assert [cell.strip() for cell in cells[:2]] == ['mit-b0-rwgka', '64x96']
    shares = [int(cell.strip(' %')) for cell in cells[4:-1]] + [int(cells[-1].strip(' %'))]
    assert len(shares) == len(profile_backbones.KINDS) and abs(sum(shares) - 100) <= 4
    assert shares[0] > 0 and shares[2] > 0  # linear layers, convolutions


@pytest.mark.parametrize(
    'name, kind',
    [
        ('mkldnn::_linear_pointwise', 'linear layers'),
        ('aten::_scaled_dot_product_flash_attention_for_cpu', 'softmax attention'),
        ('aten::mkldnn_convolution', 'convolutions'),
        ('aten::bmm', 'products of attention'),
        ('aten::native_layer_norm', 'norms'),
        ('aten::copy_', 'copies'),
        ('aten::exp_', 'elementwise'),
    ],
)
def test_kinds(name, kind):
    assert profile_backbones.kind_of(name) == kind
