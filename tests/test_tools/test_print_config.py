import os
import subprocess
import sys

import pytest
from mmengine.config import Config

from .conftest import CONFIGS


def test_prints_and_saves_what_training_would_see(root, run, capsys, tmp_path):
    path = tmp_path / 'whole.py'
    run('print-config', root / CONFIGS['seg'], '--save-path', path,
        '--cfg-options', 'model.backbone.cpe=False')  # fmt: skip
    assert 'cpe=False' in capsys.readouterr().out
    saved, source = Config.fromfile(path), Config.fromfile(root / CONFIGS['seg'])
    assert saved.model.backbone.pop('cpe') is False
    assert saved.to_dict() == source.to_dict()


def test_a_closed_pipe_is_no_error(root):
    """As after ``| head``, but closed for certain before the first line."""
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, '-m', 'mmlinattn', 'print-config', root / CONFIGS['seg']]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, '')


def test_unknown_option_and_format(root, run, capsys):
    with pytest.raises(ValueError, match="no 'optim_wraper'; did you mean optim_wrapper"):
        run('print-config', root / CONFIGS['seg'], '--cfg-options', 'optim_wraper.lr=1')
    with pytest.raises(SystemExit):
        run('print-config', root / CONFIGS['seg'], '--save-path', 'config.txt')
    assert "got 'config.txt'" in capsys.readouterr().err
