"""Launchers: which Python they take, what they refuse."""

import os
import shutil
import socket
import subprocess
import sys

import pytest


def bash(script, *arguments, cwd=None, **environment) -> subprocess.CompletedProcess:
    env = {k: v for k, v in os.environ.items() if k not in ('VIRTUAL_ENV', 'CONDA_PREFIX', 'MMCV')}
    command = ['bash', str(script), *arguments]
    return subprocess.run(
        command, env={**env, **environment}, cwd=cwd, capture_output=True, text=True
    )


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


def test_a_port_of_another_program_is_refused(checkout, fake_python):
    train = checkout / 'tools' / 'dist_train.sh'
    no_store = str(fake_python(TCPStore='exit 1', run='echo started'))
    with socket.create_server(('127.0.0.1', 0)) as taken:
        options = dict(NNODES='2', MASTER_ADDR='127.0.0.1', PORT=str(taken.getsockname()[1]))
        done = bash(train, 'c.py', '2', PYTHON=no_store, **options)
        assert done.returncode == 2 and f'at 127.0.0.1:{options["PORT"]}; choose' in done.stderr
        store = str(checkout / 'given/python')  # succeeds: it is a store
        assert 'run --nnodes=2' in bash(train, 'c.py', '2', PYTHON=store, **options).stdout
    assert bash(train, 'c.py', '2', PYTHON=no_store, **options).stdout == 'started\n'


@pytest.fixture
def fake_python(tmp_path):
    """fake_python(**answers): an interpreter with answers of its own.

    Each answer is the shell code for calls whose arguments have that word, such as ``venv``. It
    does nothing, successfully, for others.
    """

    def make(**answers):
        prefix = tmp_path / 'prefix'
        prefix.mkdir()
        answers = {'sys.prefix': f'echo {prefix}', **answers}
        cases = ''.join(f'*"{word}"*) {code};;\n' for word, code in answers.items())
        python = prefix / 'python'
        python.write_text(f'#!/bin/sh\ncase "$*" in\n{cases}esac\n')
        python.chmod(0o755)
        return python

    return make


def test_the_demo_names_a_folder_that_cannot_be_made(root):
    command = [sys.executable, str(root / 'tools/misc/demo.py'), '--work-dir', '/dev/null/demo']
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout.startswith('error: ') and '/dev/null/demo' in done.stdout
    assert 'Traceback' not in done.stderr
