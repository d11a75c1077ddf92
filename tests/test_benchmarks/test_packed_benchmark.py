"""The comparison of packed images with padding."""

import pytest
import torch

from benchmarks import packed


def test_sizes():
    assert packed.draw('bccd', 3) == [(480, 640)] * 3
    scales = packed.draw('bccd-scales', 11)
    assert [short for short, _ in scales] == [*packed.SCALES]
    assert {round(1e2 * width / height) for height, width in scales} == {133}
    coco = packed.draw('coco', 100)
    # Of 480x640 and 375x500, and of the same upright.
    assert coco.count((800, 1067)) == 30 + 4 and coco.count((1067, 800)) == 12 + 2
    assert max(map(max, coco)) <= 1333 and max(map(min, coco)) == 800


@pytest.mark.parametrize('train', [False, True])
def test_table(train, capsys):
    arguments = ['--models', 'encoder', '--sizes', 'bccd', '--batch', '2', '--depth', '1']
    assert packed.main([*arguments, '--rounds', '1', *['--train'] * train]) == 0
    cells = capsys.readouterr().out.splitlines()[-1].split(' | ')
    assert cells[:4] == ['| encoder', 'RALA', 'bccd', '0%'] and len(cells) == 10
    assert all(float(cell.split()[0]) > 0 for cell in cells[4:])


def test_wrong_outputs_are_not_timed():
    calls = {way: lambda i=i: [torch.ones(3) + i] for i, way in enumerate(packed.WAYS)}
    with pytest.raises(SystemExit, match='differ from those of single images by 6.7e-01'):
        packed.measured(torch.nn.Identity(), calls, False, torch.device('cpu'), 1)
