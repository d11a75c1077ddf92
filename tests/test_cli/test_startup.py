"""Imports and start-up time of the commands."""

import json
import os
import resource
import subprocess
import sys

import pytest

HEAVY = ('torch', 'mmengine', 'mmcv', 'cv2', 'rich', 'matplotlib', 'numpy')
# Runs a command and says which modules it has imported.
RUN = """
import json, sys
sys.argv = ['mmlinattn', *sys.argv[1:]]
from mmlinattn.__main__ import main
try:
    code = main()
except SystemExit as end:
    code = end.code
print(json.dumps(dict(code=code, modules=sorted(sys.modules))))
"""


def imports_of(root, *words, **options):
    """Return exit code, imported modules and standard error of a command in a fresh process."""
    done = subprocess.run(
        [sys.executable, '-c', RUN, *map(str, words)], capture_output=True, text=True, check=True,
        env={**os.environ, 'PYTHONPATH': str(root)}, **options,
    )  # fmt: skip
    found = json.loads(done.stdout.splitlines()[-1])
    return found['code'], set(found['modules']), done


@pytest.mark.parametrize(
    'words, code',
    [
        (['--version'], 0),
        (['--help'], 0),
        (['train', '--help'], 0),
        (['analyze', 'key-weights', '--help'], 0),
        (['trian'], 2),
        (['train', 'c.py', '--resmue'], 2),
        (['predict', 'c.py', 'w.pth', 'a.jpg', '--min-score', '2'], 2),
    ],
)
def test_arguments_are_parsed_before_anything_is_imported(root, words, code):
    found, modules, _ = imports_of(root, *words)
    assert found == code and not modules.intersection(HEAVY)


@pytest.mark.parametrize('start', [['-m', 'mmlinattn', 'train'], ['tools/train.py']])
def test_answers_at_once(root, start):
    """It takes 0.1 s of computing here, 0.04 of them for Python; half a second is the limit."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, *start, 'c.py', '--hepl'], cwd=root, capture_output=True, text=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.5
    assert done.returncode == 2 and not done.stdout
    assert 'did you mean --help?' in done.stderr and done.stderr.count('\n') == 1


def test_weights_are_converted_without_the_frameworks(root, tmp_path):
    code, modules, _ = imports_of(root, 'convert', 'nowhere.pth', 'out.pth', cwd=tmp_path)
    assert code == 2 and 'torch' in modules
    assert not modules.intersection(('mmdet', 'mmseg', 'mmpretrain', 'mmlinattn.engine'))
