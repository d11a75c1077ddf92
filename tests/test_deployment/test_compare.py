"""Comparison of the outputs of a file with those of its model, and files on a full disk."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from mmlinattn.deployment import Export, FileMetadata, formats
from mmlinattn.deployment.compare import difference, match
from mmlinattn.utils import WriteError


def test_detections_are_compared_in_any_order():
    boxes = torch.tensor([[0.0, 0, 10, 10], [5, 5, 20, 20], [1, 1, 2, 2]])
    scores, labels = torch.tensor([0.9, 0.8, 0.1]), torch.tensor([0, 1, 1])
    one = dict(boxes=boxes[None], scores=scores[None], labels=labels[None], count=torch.tensor([3]))
    order = torch.tensor([1, 0, 2])
    other = {name: x[:, order] for name, x in one.items() if name != 'count'}
    assert match(other, one) == [0, 0]  # the last is unsure
    moved = dict(one, boxes=one['boxes'] + torch.tensor([[0.0], [2.0], [50.0]]))
    assert match(moved, one) == pytest.approx([0, 0.1])
    assert match(dict(one, labels=one['labels'] + 5), one) == [float('inf')] * 2
    assert difference(moved, one) == pytest.approx(0.1)
    for name in ('scores', 'boxes'):
        broken = dict(one, **{name: one[name] * float('nan')})
        assert difference(broken, one) == difference(one, broken) == float('inf')


def test_a_full_disk(tmp_path, monkeypatch):
    """torch would end the process without a word of the file."""
    program = torch.export.export(torch.nn.Linear(2, 2), (torch.zeros(1, 2),))
    metadata = FileMetadata('detection', (), ('boxes',), 1, False, (1, 1), 1, 1, (0, 0, 0))
    full = formats.Format('.pt2', lambda *args: formats.write_pt2(*args[:2], Path('/dev/full')), id)
    monkeypatch.setitem(formats.FORMATS, 'pt2', full)
    exported = SimpleNamespace(program=program, metadata=metadata, coarsest=1)
    with pytest.raises(WriteError, match=r'model\.pt2 cannot be written: No space left'):
        Export.write(exported, 'pt2', tmp_path / 'model.pt2')
