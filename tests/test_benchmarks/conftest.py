from pathlib import Path

import pytest

from benchmarks import report, run


@pytest.fixture
def docs(tmp_path, monkeypatch) -> Path:
    """Return an empty folder that stands for docs/."""
    for module in (report, run):
        monkeypatch.setattr(module, 'DOCS', tmp_path)
    for name in ('benchmarks', 'images'):
        (tmp_path / name).mkdir()
    return tmp_path
