"""The notebook: what it shows is what its code gives, and it runs."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.programs import Program
from tests.sizes import LONG
from tests.test_deployment.conftest import CAPTURES

pytestmark = pytest.mark.slow

NOTEBOOK = 'docs/tutorial.ipynb'
SHORTER = {
    'max_iters = 60': 'max_iters = 2',
    'range(20)': 'range(2)',
    'subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True)': (
        'forked(*map(str, command))'
    ),
}


def forked(*command: str) -> subprocess.CompletedProcess:
    """Python called so, here, without the seconds of imports."""
    here = Path.cwd()
    how, (name, *arguments) = 'path', command
    if name == '-m':
        how, (name, *arguments) = 'module', arguments
    script, output = here / 'called.py', here / 'called.txt'
    script.write_text(
        f'import os, runpy, sys\nif __name__ == "__main__":\n    os.chdir({str(here)!r})\n'
        f"    sys.argv[0] = {name!r}\n    runpy.run_{how}({name!r}, run_name='__main__')\n"
    )
    output.write_text('')
    code = Program(script, arguments, output, [here]).end()
    return subprocess.CompletedProcess(command, code, output.read_text(), output.read_text())


def code_of(path):
    cells = json.loads(path.read_text(encoding='utf-8'))['cells']
    return [cell for cell in cells if cell['cell_type'] == 'code']


@pytest.mark.long
def test_it_runs(root, tmp_path):
    """Its cells, in a folder with what it reads of the repository; briefly in the short version."""
    pytest.importorskip('onnxscript', reason='it comes with the extra "export"')
    for name in ('configs', 'demo', 'tools', 'mmlinattn', 'pyproject.toml'):
        (tmp_path / name).symlink_to(root / name)
    code = '\n'.join(''.join(cell['source']) for cell in code_of(root / NOTEBOOK))
    for whole, brief in SHORTER.items():
        assert code.count(whole) == 1, whole
        code = code if LONG else code.replace(whole, brief)
    script, cells = tmp_path / 'cells.py', tmp_path / 'cells.txt'
    cells.write_text(f'from tests.test_tutorial import forked\n{code}')
    script.write_text(
        f"import os; __name__ == '__main__' and (os.chdir({str(tmp_path)!r}), "
        "exec(open('cells.txt').read()))"
    )
    program = Program(script, [], tmp_path / 'printed', [tmp_path, root])
    status, text = program.end(), program.text()
    assert status == int(not CAPTURES), text
    found = float(re.search(r'bbox_mAP_50 +(-?[\d.]+)', text)[1])
    assert 0.2 < found < 1 or not LONG
    assert (tmp_path / 'work_dirs/tutorial/predictions/predictions.json').is_file()
    if not CAPTURES:  # the section on export ends with a line that says so
        assert 'FormatError: export needs torch 2.9 or newer' in text.splitlines()[-1]
        return
    assert (tmp_path / 'work_dirs/tutorial/model.onnx').is_file()
    assert float(re.search(r'model.onnx differs by ([\de.+-]+)', text)[1]) < 1e-3
    milliseconds = re.findall(r'^(torch|model\.onnx) +(\d+) ms$', text, re.M)
    assert [name for name, _ in milliseconds] == ['torch', 'model.onnx']
    assert all(int(number) > 0 for _, number in milliseconds)
