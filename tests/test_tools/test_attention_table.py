"""The table of docs/attentions.md."""

import importlib.util
import json

import pytest


@pytest.fixture
def script(root):
    spec = importlib.util.spec_from_file_location(
        'attention_table', root / 'tools' / 'misc' / 'attention_table.py'
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


NO_TIMES = dict(
    dict.fromkeys(('command', 'commit', 'machine', 'threads', 'versions', 'settings')), ms={}
)


def result(baseline, tokens, seconds, **kwargs):
    facts = dict(case='attentions', mode='forward', batch=1, skipped='')
    return dict(facts, baseline=baseline, tokens=tokens, seconds=seconds, **kwargs)


@pytest.fixture
def measured(tmp_path, script, monkeypatch):
    path = tmp_path / 'layers.json'
    monkeypatch.setattr(script, 'TIMES', path)
    facts = dict.fromkeys(('machine', 'versions', 'settings'), 'x')
    results = [
        result('RALA', 4096, [0.003, 0.00212345, 0.001]),
        result('RALA', 16384, [0.1, 0.2]),
        result('SoftmaxAttention', 4096, []) | dict(skipped='too long'),
        result('RALA', 65536, [0.5]) | dict(mode='forward+backward'),
        result('RALA', 1024, [0.7]),
    ]
    facts.update(command='python benchmarks/run.py', commit='0123456789', threads=2)
    path.write_text(json.dumps(dict(facts, results=results)))
    return path


def test_the_page_has_not_drifted(script, capsys):
    assert script.main(['--check']) == 0, capsys.readouterr().out


def test_every_attention_has_two_rows(script):
    rows = [row.split('`')[1] for row in script.table(NO_TIMES) if row.startswith('| `')]
    assert rows == 2 * list(script.ours())  # the choice, then the details
    assert {'RALA', 'HydraAttention', 'NonLocalBlock'} <= set(script.ours())


def test_parameters_are_those_that_can_be_counted_by_hand(script):
    _, row = (row for row in script.table(NO_TIMES) if '| `RALA`' in row)
    # A gate of 64 x 64 + 64, a convolution of 5 x 5 for each of 64 channels with bias.
    assert f'| +{64 * 65 + 64 * 26:,} |' in row


def test_times_are_shown(script, measured, tmp_path, monkeypatch):
    page = tmp_path / 'attentions.md'
    page.write_text(f'before\n{script.BEGIN}\nold\n{script.END}\nafter\n')
    monkeypatch.setattr(script, 'PAGE', page)
    monkeypatch.setattr(script, 'ROOT', tmp_path)
    assert script.main(['--check']) == 1
    assert script.main([]) == 0
    text = page.read_text()
    assert '| 2.12 | 150 |  |' in text
    facts = '`python benchmarks/run.py`; commit 0123456789; x; 2 threads; x; x.'
    assert f'\nTimes: {facts}\n' in text
    assert text.startswith('before\n') and text.endswith('after\n') and 'old' not in text
    assert script.main(['--check']) == 0


def test_results_of_another_case_are_refused(script, measured):
    data = json.loads(measured.read_text())
    measured.write_text(json.dumps(dict(data, results=data['results'][2:])))
    with pytest.raises(SystemExit, match="has no times of the case 'attentions', forward"):
        script.main(['--check'])


def test_an_attention_without_info_is_named(script, monkeypatch):
    monkeypatch.setattr(script.layers.HydraAttention, 'info', None)
    with pytest.raises(SystemExit, match='HydraAttention has no `info`: add info = AttentionInfo'):
        script.table(NO_TIMES)
