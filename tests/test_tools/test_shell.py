"""Launchers and set-up: which Python they take, what they refuse."""

import os
import shutil
import subprocess

import pytest


def bash(script, *arguments, **environment) -> subprocess.CompletedProcess:
    env = {k: v for k, v in os.environ.items() if k not in ('VIRTUAL_ENV', 'CONDA_PREFIX', 'MMCV')}
    command = ['bash', str(script), *arguments]
    return subprocess.run(command, env={**env, **environment}, capture_output=True, text=True)


@pytest.fixture
def checkout(root, tmp_path):
    """The launchers beside interpreters that only say their name."""
    shutil.copytree(root / 'tools', tmp_path / 'tools', ignore=shutil.ignore_patterns('*.py'))
    for folder in ('.venv/bin', 'active', 'given'):
        python = tmp_path / folder / 'python'
        python.parent.mkdir(parents=True)
        python.write_text(f'#!/bin/sh\necho {folder} "$@"\n')
        python.chmod(0o755)
    return tmp_path


@pytest.mark.parametrize(
    'name, arguments', [('dist_train.sh', ['c.py', '2']), ('dist_test.sh', ['c.py', 'c.pth', '2'])]
)
def test_launchers_take_the_projects_environment_where_none_is_active(checkout, name, arguments):
    script, path = checkout / 'tools' / name, f'{checkout}/active:{os.environ["PATH"]}'
    out = bash(script, *arguments, PATH=path).stdout
    assert out.startswith('.venv/bin -m torch.distributed.run') and '--launcher pytorch' in out
    assert bash(script, *arguments, PATH=path, VIRTUAL_ENV='x').stdout.startswith('active ')
    assert bash(script, *arguments, PATH=path, CONDA_PREFIX='x').stdout.startswith('active ')
    given = bash(script, *arguments, PATH=path, PYTHON=str(checkout / 'given/python'))
    assert given.stdout.startswith('given ')
    shutil.rmtree(checkout / '.venv')
    assert bash(script, *arguments, PATH=path).stdout.startswith('active ')


@pytest.mark.parametrize(
    'environment, message',
    [
        (dict(MMCV='full'), "MMCV must be lite or compiled, got 'full'"),
        (dict(STACK='mine'), "STACK must be onedl or original, got 'mine'"),
        (dict(BASE_PYTHON='/no/python'), 'no Python 3.10 to 3.13 with venv'),
    ],
)
def test_setup_refuses(root, tmp_path, environment, message):
    venv = tmp_path / 'venv'
    done = bash(root / 'tools/misc/setup.sh', f'{venv}/bin/python', str(venv), **environment)
    assert done.returncode == 2 and message in done.stderr and not venv.exists()


def test_setup_says_that_a_given_python_is_not_there(root, tmp_path):
    done = bash(root / 'tools/misc/setup.sh', '/no/python', str(tmp_path / 'venv'))
    assert done.returncode == 2 and 'PYTHON=/no/python is not there' in done.stderr
