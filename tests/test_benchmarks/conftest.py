from pathlib import Path

import pytest

from benchmarks import report


@pytest.fixture
def benchmark_page(tmp_path, monkeypatch) -> Path:
    """Return a docs/benchmarks.md of its own, with a place for the benchmark ``a``."""
    monkeypatch.setattr(report, 'DOCS', tmp_path)
    (tmp_path / 'images').mkdir()
    page = tmp_path / report.PAGE
    page.write_text(f'before\n{report.begin("a")}\nold\n{report.END}\nafter\n')
    return page
