"""The notebook: what it shows is what its code gives, and it runs."""

import json
import re

import pytest

from tests.sizes import LONG

NOTEBOOK = 'docs/tutorial.ipynb'


def printed(cells):
    """All text that the cells printed."""
    outputs = [out for cell in cells for out in cell.get('outputs', ())]
    return '\n'.join(''.join(out.get('text', '')) for out in outputs)


def code_of(path):
    cells = json.loads(path.read_text(encoding='utf-8'))['cells']
    return [cell for cell in cells if cell['cell_type'] == 'code']


def test_it_was_executed_in_order_and_is_small(root):
    path = root / NOTEBOOK
    cells = code_of(path)
    assert [cell['execution_count'] for cell in cells] == [*range(1, len(cells) + 1)]
    assert not [o for cell in cells for o in cell['outputs'] if o['output_type'] == 'error']
    assert path.stat().st_size < 400_000
    # No place of the machine that it ran on.
    assert not re.search(r'"/(home|root|work|tmp|usr)/', path.read_text(encoding='utf-8'))
    pictures = [o for c in cells for o in c['outputs'] if 'image/png' in o.get('data', {})]
    assert len(pictures) == 4


@pytest.mark.long
@pytest.mark.skipif(not LONG, reason='trains for a minute or two: `make test-long`')
def test_it_runs(root, tmp_path):
    """In a folder with what it reads of the repository."""
    nbclient = pytest.importorskip('nbclient', reason='pip install nbclient ipykernel')
    nbformat = pytest.importorskip('nbformat', reason='pip install nbclient ipykernel')
    for name in ('configs', 'tools', 'mmlinattn', 'pyproject.toml'):
        (tmp_path / name).symlink_to(root / name)
    notebook = nbformat.read(root / NOTEBOOK, as_version=4)
    nbclient.NotebookClient(
        notebook, timeout=600, kernel_name='python3', resources=dict(metadata=dict(path=tmp_path))
    ).execute()
    found = float(re.search(r'bbox_mAP_50 +([\d.]+)', printed(notebook.cells))[1])
    assert 0.2 < found < 1
    assert (tmp_path / 'work_dirs/tutorial/predictions/predictions.json').is_file()
    assert (tmp_path / 'work_dirs/tutorial/model.onnx').is_file()
    assert float(re.search(r'model.onnx differs by ([\de.+-]+)', printed(notebook.cells))[1]) < 1e-3
    milliseconds = re.findall(r'^(torch|model\.onnx) +(\d+) ms$', printed(notebook.cells), re.M)
    assert [name for name, _ in milliseconds] == ['torch', 'model.onnx']
    assert all(int(number) > 0 for _, number in milliseconds)
