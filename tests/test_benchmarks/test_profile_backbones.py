"""Shares of a backbone's time."""

import re

import pytest

from benchmarks import profile_backbones, report


@pytest.mark.parametrize('bf16', [False, True])
def test_shares_are_of_all_the_time(monkeypatch, capsys, bf16):
    monkeypatch.setattr(profile_backbones, 'SIDE', 64)
    arguments = ['--backbones', 'mit-b0-rwgka', '--images', '64x96', '--rounds', '1']
    assert profile_backbones.main(arguments + ['--bf16'] * bf16) == 0
    rows = [re.split(r' *\| *', line)[1:-1] for line in capsys.readouterr().out.splitlines()]
    rows = [row for row in rows if row and row[0] == 'mit-b0-rwgka']
    assert [row[1:3] for row in rows] == [['64x96', 'float32'], ['64x96', 'bfloat16']][: 1 + bf16]
    for row in rows:
        peak, *shares = (int(cell.rstrip('%')) for cell in row[4:])
        assert peak > 0
        assert len(shares) == len(profile_backbones.KINDS) and abs(sum(shares) - 100) <= 4
        assert shares[0] > 0 and shares[2] > 0  # linear layers, convolutions


def test_the_page_shows_the_table(benchmark_page, monkeypatch, capsys):
    monkeypatch.setattr(profile_backbones, 'SIDE', 64)
    with pytest.raises(SystemExit):
        profile_backbones.main(['--docs', 'b'])
    assert 'must have one line <!-- benchmark: b -->' in capsys.readouterr().err
    words = '--backbones mit-b0-rwgka --images 64x96 --rounds 1 --docs a'
    assert profile_backbones.main(words.split()) == 0
    out, text = capsys.readouterr().out, benchmark_page.read_text()
    (row,) = (line for line in out.splitlines() if line.startswith('| mit-b0-rwgka'))
    assert row in text and f'python benchmarks/profile_backbones.py {words}' in text
    report.redraw('a')
    assert benchmark_page.read_text() == text


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
