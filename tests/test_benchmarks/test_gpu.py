"""The benchmark of a GPU, without one: tiny sizes, Triton's interpreter."""

import math
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from benchmarks import gpu, jobs
from benchmarks.cases import Setup
from benchmarks.cases.problems import OPERATORS, TIMED, Problem
from benchmarks.gpu_suite import checks, models

pytest.importorskip('triton')
DEVICE = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
SETUP = Setup((3, 5), 2, 2, 8, torch.float64, torch.device('cpu'), True, 'triton')


def main(folder, *argv) -> int:
    return gpu.main(['--device', str(DEVICE), '--tiny', '--out', str(folder), *argv])


def states(folder, section) -> list:
    return [job['state'] for job in jobs.read(folder / f'{section}.json')['jobs'].values()]


@pytest.mark.slow
def test_tiny_run_of_all_sections_and_resume(tmp_path, monkeypatch):
    assert main(tmp_path) == 0
    done = [name for name in gpu.SECTIONS if set(states(tmp_path, name)) == {'done'}]
    assert {'machine', 'correctness', 'host', 'operators', 'models'} <= {*done}
    assert set(states(tmp_path, 'robustness')) <= {'done', 'left'}
    rows = jobs.rows_of(jobs.read(tmp_path / 'correctness.json'))
    assert all({'output', 'dq', 'dk', 'dv'} <= row.keys() for row in rows)
    assert {(row['operator'], row['form']) for row in rows} == {
        (name, backend) for name in OPERATORS for backend in OPERATORS[name].backends
    }
    text = (tmp_path / 'report.md').read_text()
    assert 'RAVLT-nano' in text and 'SegFormer-B0 RWGKA' in text
    assert DEVICE.type == 'cuda' or 'left (needs a GPU)' in text
    monkeypatch.setattr(jobs, 'run_job', lambda *_: pytest.fail('runs again'))
    assert main(tmp_path, '--only', *done) == 0


def test_edited_code_is_other_code(tmp_path):
    """The commit of a changed tree is the same before and after another edit."""
    file = tmp_path / 'mmlinattn/kernels.py'
    file.parent.mkdir()
    file.write_text('out = out')
    before = gpu.sources(tmp_path)
    assert gpu.sources(tmp_path) == before
    file.write_text('out = 2 * out')
    assert gpu.sources(tmp_path) != before


def test_the_report_shows_nan_of_any_gradient():
    row = dict(operator='rala', dtype='float32', form='triton', output=1e-7, dq=1e-6, dk=math.nan)
    ((*_, output, gradients),) = gpu.errors([row])['lines']
    assert output == 1e-7 and math.isnan(gradients)


def test_one_segformer_has_the_head_of_mmsegmentation():
    """It tells what of the difference to MMSegmentation is the head."""
    found = models.models(jobs.Session(DEVICE, False))
    for arch in ('B0', 'B2'):
        ours, theirs = (
            found[f'SegFormer-{arch} {name}, 1024x1024'].build(DEVICE)
            for name in ("with MMSegmentation's head", 'of MMSegmentation')
        )
        assert type(ours.backbone).__name__ == 'MixTransformer' != type(theirs.backbone).__name__
        assert type(ours.decode_head) is type(theirs.decode_head)
        shapes = [[p.shape for p in m.decode_head.parameters()] for m in (ours, theirs)]
        assert shapes[0] == shapes[1]


@pytest.mark.parametrize(
    'section, change, message',
    [
        ('correctness', lambda out, i: 1.01 * out, 'case 0: output differs by 1.0e-02, more than'),
        ('correctness', lambda out, i: math.nan * out, 'case 0: output differs by nan'),
        ('robustness', lambda out, i: out + i % 2, 'repeats, float32, triton: output changes'),
    ],
    ids=['off by 1%', 'NaN', 'not repeatable'],
)
def test_wrong_result_is_named(tmp_path, capsys, monkeypatch, section, change, message):
    original, calls = OPERATORS['additive'], []

    def run(setup, x, **options):
        calls.append(1)
        out = original.run(setup, x, **options)
        return out if out.dtype == torch.float64 else change(out, len(calls))

    for name in list(OPERATORS):
        monkeypatch.delitem(OPERATORS, name)
    monkeypatch.setattr(checks, 'TIMED', [])
    monkeypatch.setitem(OPERATORS, 'additive', replace(original, run=run))
    assert main(tmp_path, '--only', section) == 1
    for text in (capsys.readouterr().out, (tmp_path / 'report.md').read_text()):
        assert f'{section}, additive' in text and message in text
    OPERATORS['additive'] = original
    assert main(tmp_path, '--only', section) == 0


@pytest.mark.parametrize('padded', [False, True])
@pytest.mark.parametrize('name', OPERATORS)
def test_exact_results_are_those_of_the_definitions(name, padded):
    problem = Problem.of(name, SETUP, padded, flat=padded)
    expected = problem.exact()
    assert 'wrong' not in problem.verdict(problem.step('reference'), expected)
    out, dq, *others = expected
    assert problem.verdict((out, dq.roll(1, 2) + 1, *others), expected)['wrong'].startswith('dq')
    if name in TIMED and not padded:  # a head is as if it were alone
        part, taken = problem.of_head(-1, expected)
        assert 'wrong' not in part.verdict(taken, part.exact())


def test_sections_share_the_time_and_a_second_call_resumes(tmp_path, monkeypatch):
    clock = SimpleNamespace(now=0.0, broken=True)
    monkeypatch.setattr(jobs.time, 'time', lambda: clock.now)

    def step(name):
        clock.now += 4
        if name == 'b0' and clock.broken:
            raise RuntimeError('illegal address')
        yield {'name': name}

    def section(name, count) -> jobs.Section:
        found = {f'{name}{i}': partial(step, f'{name}{i}') for i in range(count)}
        return jobs.Section(name, name, 1, lambda session: dict(found), list)

    def call(seconds, key='x') -> list:
        session, lines = jobs.Session(torch.device('cpu'), True), []
        sections = [section('a', 4), section('b', 3)]
        jobs.run(sections, session, {'key': key}, tmp_path, seconds, lines.append)
        return lines

    lines = call(10)  # two jobs of a start in its five seconds, one of b in the rest
    assert states(tmp_path, 'a') == ['done', 'done', 'left', 'left']
    assert states(tmp_path, 'b') == ['failed', 'left', 'left']
    assert 'b, b0: RuntimeError: illegal address' in lines
    assert lines[-1].startswith('b: 1 failed, 2 left (out of time)')
    clock.broken = False
    call(100)
    assert set(states(tmp_path, 'a') + states(tmp_path, 'b')) == {'done'}
    before = clock.now
    call(100)
    assert clock.now == before
    call(100, key='another commit')
    assert clock.now == before + 7 * 4


@pytest.mark.slow
def test_jobs_run_side_by_side_and_one_may_break_its_process():
    good = partial(list, [{'a': 1}])
    run = {'a': good, 'died': partial(os._exit, 3), 'unknown': lambda: [], 'b': good}
    results = dict(jobs._execute(run, 2, math.inf))
    found = {name: (result['state'], result['rows']) for name, result in results.items()}
    assert found['a'] == found['b'] == ('done', [{'a': 1}])
    assert found['died'] == found['unknown'] == ('failed', [])
    assert results['died']['why'] == 'its process died'
    assert 'pickle' in results['unknown']['why'].lower()


@pytest.mark.slow
def test_torch_and_triton_are_enough(root, tmp_path):
    names = ('mmengine', 'mmcv', 'mmdet', 'mmseg', 'rich', 'matplotlib', 'pandas', 'timm')
    code = (
        f'import sys; sys.modules.update(dict.fromkeys({names})); from benchmarks import gpu\n'
        f'argv = ["--device", "{DEVICE}", "--tiny", "--out", {str(tmp_path)!r}, "--only"]\n'
        'sys.exit(gpu.main(argv + ["machine", "host", "models"]))'
    )
    done = subprocess.run([sys.executable, '-c', code], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert 'models: 2 left (needs OpenMMLab: ' in done.stdout and 'host: 10 done' in done.stdout
