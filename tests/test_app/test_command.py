"""``python -m mmlinattn app`` where something lacks, and what it gives to the page."""

import importlib.util
import socket

import pytest

from mmlinattn import __main__ as program
from mmlinattn.cli import app


@pytest.fixture
def served(monkeypatch, tmp_path):
    """What was loaded, shown and served, without gradio."""
    seen = {}

    monkeypatch.chdir(tmp_path)
    for name in ('1.pth', '2.pth'):
        (tmp_path / name).touch()
    monkeypatch.setattr(importlib.util, 'find_spec', lambda name: name)
    monkeypatch.setattr(app, 'load_models', lambda *given: seen.update(models=given) or {'a': None})
    monkeypatch.setattr(app, 'Workbench', lambda models: models)
    monkeypatch.setattr(
        app,
        'build_page',
        lambda names, bench, examples, limit: (
            seen.update(names=names, examples=examples, limit=limit) or 'page'
        ),
    )
    monkeypatch.setattr(
        app,
        'serve',
        lambda page, uploads, *where: seen.update(uploads=uploads, where=where) or 'http://there/',
    )
    monkeypatch.setattr(app, 'config_file', lambda config: config)
    monkeypatch.setattr(
        app, 'run_until_closed', lambda page, bench, load: seen.update(loaded=load())
    )
    monkeypatch.setattr(app, 'check_address', lambda *where: None)
    return seen


def test_without_gradio(monkeypatch, capsys, served):
    monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
    with pytest.raises(SystemExit) as end:
        program.main(['app', 'x.py', 'x.pth'])
    error = capsys.readouterr().err
    assert end.value.code == 2 and error.count('\n') == 1
    assert "the page needs the package gradio: pip install 'gradio>=6'" in error
    assert 'models' not in served


@pytest.mark.parametrize(
    'argv, message',
    [
        (['x.py', 'x.pth'], "config 'x.py' does not exist"),
        (['ravlt-nano_shapes', 'x.pth'], 'x.pth'),
        (['--images', 'none'], "--images 'none' has no images"),
    ],
)
def test_what_is_not_there(monkeypatch, tmp_path, capsys, argv, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(importlib.util, 'find_spec', lambda name: name)
    with pytest.raises(SystemExit) as end:
        program.main(['app', *argv])
    error = capsys.readouterr().err
    assert end.value.code == 2 and message in error and 'error: ' in error
    assert error.count('\n') == 1


@pytest.mark.parametrize(
    'argv, message',
    [
        (['x.py'], "each CONFIG needs its CHECKPOINT; 'x.py' has none"),
        (['x.py', 'x.pth', 'y.py'], "'y.py' has none"),
        (['x.py', 'x.pth', '--port', '70000'], '--port must be 1 to 65535, got 70000'),
        (['x.py', 'x.pth', '--max-megapixels', '0'], '--max-megapixels must be above 0'),
        (['x.py', 'x.pth', '--max-megapixels', 'nan'], 'got nan'),
    ],
)
def test_arguments(capsys, served, argv, message):
    with pytest.raises(SystemExit) as end:
        program.main(['app', *argv])
    assert end.value.code == 2 and message in capsys.readouterr().err


def test_what_is_served(served, tmp_path, capsys):
    """Models in pairs, the first pictures of the folder; for this machine alone."""
    for name in [f'{i:02d}.png' for i in range(11)] + ['notes.txt']:
        (tmp_path / name).touch()
    assert program.main(['app', 'x.py', '1.pth', 'y.py', '2.pth', '--images', str(tmp_path)]) == 0
    assert served['names'] == ['x', 'y']
    assert served['models'] == ([('x.py', '1.pth'), ('y.py', '2.pth')], 'cpu')
    assert [path.name for path in served['examples']] == [f'{i:02d}.png' for i in range(8)]
    assert served['where'] == ('127.0.0.1', None) and served['loaded'] == {'a': None}
    assert served['limit'] == 50 and not served['uploads'].exists()
    assert 'http://there/ (Ctrl-C closes it)' in capsys.readouterr().out
    served.clear()
    assert (
        program.main(
            ['app', 'x.py', '1.pth', '--host', '0.0.0.0', '--port', '80', '--device', 'cuda']
        )
        == 0
    )
    assert served['where'] == ('0.0.0.0', 80) and served['models'][1] == 'cuda'
    assert served['examples'] == []
    served.clear()
    assert program.main(['app']) == 0
    name = 'semantic-fpn_ravlt-nano_shapes'
    assert (name, f'mmlinattn://{name}') in served['models'][0]


def test_a_port_that_is_in_use(served, monkeypatch, capsys):
    """One line, before the models are loaded; another application is what listens there."""
    monkeypatch.undo()
    monkeypatch.setattr(importlib.util, 'find_spec', lambda name: name)
    with socket.create_server(('127.0.0.1', 0)) as other, pytest.raises(SystemExit) as end:
        port = str(other.getsockname()[1])
        program.main(['app', 'x.py', 'x.pth', '--port', port])
    error = capsys.readouterr().err
    assert end.value.code == 2 and error.count('\n') == 1
    assert f'--host 127.0.0.1 --port {port} cannot be listened at: ' in error
    assert 'in use; choose another' in error and served == {}
