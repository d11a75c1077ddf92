"""The script for a session with a GPU, without one: tiny sizes, Triton's interpreter."""

import json
import math
import re
import subprocess
import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import NamedTuple

import pytest
import torch

from benchmarks import gpu
from benchmarks.cases import LAYOUTS, Setup
from benchmarks.gpu_suite import checks, kernels, speed, tables
from benchmarks.gpu_suite import session as days
from benchmarks.gpu_suite.problems import OPERATORS, Problem
from benchmarks.gpu_suite.session import NeedsMore, Section, Session, rows_of, run
from mmlinattn.ops import BackendError
from mmlinattn.ops.common import dispatch

if dispatch.TRITON_PROBLEM:
    pytest.skip(dispatch.TRITON_PROBLEM, allow_module_level=True)
DEVICE = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
CPU = torch.device('cpu')
DAY = Session(CPU, tiny=True)
SETUP = Setup((3, 5), 2, 2, 8, torch.float64, CPU, True)


def main(folder, *argv) -> int:
    return gpu.main(['--device', str(DEVICE), '--tiny', '--out', str(folder), *argv])


def states(record) -> list:
    return [job['state'] for job in record['jobs'].values()]


@pytest.mark.slow
def test_a_tiny_day_runs_every_section_and_a_second_call_none(tmp_path, capsys, monkeypatch):
    assert main(tmp_path) == 0
    records = {name: days.read(tmp_path / f'{name}.json') for name in gpu.SECTIONS}
    for name, record in records.items():
        assert record['jobs'] and set(states(record)) <= {'done', 'left'}, name
        assert DEVICE.type == 'cuda' or ('done' in states(record)) == (
            name not in ('compiling', 'graphs', 'registers', 'tuning')
        )
    rows = rows_of(records['correctness'])
    assert {(row['operator'], row['form']) for row in rows} == {
        (name, form) for name in OPERATORS for form in checks.forms(name)
    }
    assert all('output' in row and 'dq' in row for row in rows)
    report = (tmp_path / 'report.md').read_text()
    assert report.count('\n### ') == 1 + len(gpu.SECTIONS) and 'Nothing was found' in report
    if DEVICE.type == 'cpu':
        assert report.count('Left, needs a GPU: ') >= 3
    assert (tmp_path / 'bandwidth.png').stat().st_size > 1000

    monkeypatch.setattr(days, '_run_job', lambda job, why_not: pytest.fail('runs again'))
    monkeypatch.setattr(days.Session, 'needs_gpu', lambda self: None)
    done = [name for name, record in records.items() if set(states(record)) == {'done'}]
    before = {name: (tmp_path / f'{name}.json').read_text() for name in done}
    assert main(tmp_path, '--only', *done) == 0
    assert before == {name: (tmp_path / f'{name}.json').read_text() for name in done}
    # What is not asked for stays in the report.
    assert (tmp_path / 'report.md').read_text().count('\n### ') == 1 + len(gpu.SECTIONS)


def only(monkeypatch, name, **changes):
    """Leaves one operator, changed."""
    operator = replace(OPERATORS[name], **changes)
    for other in list(OPERATORS):
        monkeypatch.delitem(OPERATORS, other)
    monkeypatch.setitem(OPERATORS, name, operator)


@pytest.mark.parametrize('section', ['correctness', 'precision', 'large'])
@pytest.mark.parametrize('factor', [1.01, math.nan])
def test_a_wrong_result_ends_with_exit_code_1(tmp_path, capsys, monkeypatch, factor, section):
    original = OPERATORS['additive'].run
    only(monkeypatch, 'additive', run=lambda *args: factor * original(*args))
    assert main(tmp_path, '--only', section) == 1
    error = 'nan' if math.isnan(factor) else '1.0e-02'
    assert f'output differs by {error}, more than' in (tmp_path / 'report.md').read_text()
    # It is known, and still wrong.
    assert main(tmp_path, '--only', section) == 1
    monkeypatch.undo()
    only(monkeypatch, 'additive')
    assert main(tmp_path, '--only', section, '--again') == 0


def test_a_gpu_is_verified_by_all_checks():
    done = {
        name: dict(jobs={'a': dict(state='done'), 'b': dict(state='done')}) for name in gpu.CHECKS
    }
    assert gpu.is_verified(done)
    for name in gpu.CHECKS:
        for state in ('wrong', 'failed', 'left'):
            assert not gpu.is_verified({**done, name: dict(jobs={'a': dict(state=state)})})
        assert not gpu.is_verified({other: done[other] for other in done if other != name})


def test_a_wrong_gradient_is_seen():
    problem = Problem.of('linear', replace(SETUP, dtype=torch.float32))
    expected = problem.exact()
    out, dq, *others = problem.step('torch')
    assert 'wrong' not in problem.verdict((out, dq, *others), expected)
    row = problem.verdict((out, dq.roll(1, 2), *others), expected)
    assert row['wrong'].startswith('dq differs') and ';' not in row['wrong']
    assert 'wrong' in problem.verdict((out, dq[:, :, 1:], *others), expected)


def test_a_kernel_that_refuses_is_wrong_unless_heads_are_wide(monkeypatch):
    def refuse(*_):
        raise BackendError('too much shared memory')

    only(monkeypatch, 'additive', run=refuse)
    small, wide = (replace(SETUP, head_dim=dim) for dim in (64, 128))
    for setup, wrong in ((small, True), (wide, False)):
        rows = [*checks._check('additive', setup)]
        assert ['wrong' in row for row in rows] == [wrong] * 2
        assert all(row['refused'] == 'too much shared memory' for row in rows)
    assert tables.worst_errors(rows)[-1].endswith('| 2 | 0.0e+00 | 0.0e+00 | 2 | 0 |')


def test_results_that_change_from_run_to_run_are_wrong(tmp_path, capsys, monkeypatch):
    calls = []

    def drifting(setup, leaves, mask, form):
        calls.append(1)
        return original(setup, leaves, mask, form) + len(calls) % 2

    original = OPERATORS['additive'].run
    only(monkeypatch, 'additive', run=drifting)
    assert main(tmp_path, '--only', 'repeats') == 1
    assert 'changes from run to run: output' in (tmp_path / 'report.md').read_text()


def test_a_section_that_raises_is_recorded_and_the_others_run(tmp_path, capsys, monkeypatch):
    def broken(*_):
        raise KeyError('no such thing')

    original = OPERATORS['additive'].run
    only(monkeypatch, 'additive')
    monkeypatch.setattr(speed, 'walls', broken)
    monkeypatch.setattr(speed, 'median', broken)
    chosen = ('--only', 'repeats', 'bandwidth', 'wall', 'crossover')
    assert main(tmp_path, *chosen) == 1
    records = {name: days.read(tmp_path / f'{name}.json') for name in chosen[1:]}
    # One raises where its jobs are made, the other in a job.
    for name in ('wall', 'bandwidth'):
        (job,) = records[name]['jobs'].values()
        assert job['state'] == 'failed' and 'no such thing' in job['why']
        assert 'Traceback' in job['traceback']
    assert {*states(records['repeats']), *states(records['crossover'])} == {'done'}
    assert "wall, prepare: KeyError: 'no such thing'" in (tmp_path / 'report.md').read_text()

    # What failed is tried again.
    monkeypatch.undo()
    only(monkeypatch, 'additive', run=original)
    assert main(tmp_path, *chosen) == 0
    assert days.read(tmp_path / 'wall.json')['jobs'].keys() == {'additive, 64 tokens'}


@pytest.mark.parametrize('padded', [False, True])
@pytest.mark.parametrize('layout', LAYOUTS)
@pytest.mark.parametrize('name', OPERATORS)
def test_exact_results_are_those_of_the_definitions(name, layout, padded):
    problem = Problem.of(name, replace(SETUP, layout=layout), padded, flat=padded)
    assert (problem.leaves['q'].stride(1) == 8) == (layout != 'contiguous')
    got, expected = problem.step('reference'), problem.exact()
    assert all(error < 1e-10 for error in problem.errors(got, expected).values())
    # A head is as if it were alone.
    if not padded:
        part, taken = problem.of_head(-1, 0, expected)
        errors = part.errors(taken, part.exact())
        assert {'output', 'dq', 'dk', 'dv'} <= errors.keys()
        assert all(error < 1e-10 for error in errors.values())


class Clock:
    """Time that passes where a job says so."""

    def __init__(self, monkeypatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(days.time, 'monotonic', lambda: self.now)

    def section(self, name, share, costs) -> Section:
        def job(cost):
            self.now += cost
            yield {'cost': cost, 'at': self.now}

        jobs = [(str(i), lambda cost=cost: job(cost)) for i, cost in enumerate(costs)]
        return Section(name, name, share, lambda session: jobs, tables.plain())


def test_sections_share_the_time_and_a_second_call_goes_on(tmp_path, monkeypatch):
    clock = Clock(monkeypatch)
    sections = [clock.section('a', 1, [4, 4, 4, 4]), clock.section('b', 1, [3, 3, 3])]
    lines = []

    def call(seconds, key='x', again=()):
        return run(sections, DAY, {'key': key}, tmp_path, seconds, again, lines.append)

    records = call(10)
    # Two of a start in its five seconds; the one of b that starts in the rest is finished.
    assert states(records['a']) == ['done', 'done', 'left', 'left']
    assert states(records['b']) == ['done', 'left', 'left']
    assert 'b: 1 done, 2 left (out of time)' in lines[-1]
    assert json.loads((tmp_path / 'a.json').read_text()) == records['a']
    first = rows_of(records['a'])
    records = call(100)
    assert states(records['a']) == ['done'] * 4 and states(records['b']) == ['done'] * 3
    assert rows_of(records['a'])[:2] == first
    now = clock.now
    assert call(100) == records and clock.now == now
    # Another commit, a file that was cut off, or a wish: from the start.
    assert rows_of(call(100, again=['b'])['b'])[0]['at'] == now + 3
    (tmp_path / 'b.json').write_text('{"jobs": {"0"')
    assert rows_of(call(100)['b'])[0]['at'] == now + 9 + 3
    assert rows_of(call(100, key='y')['a'])[0]['at'] == now + 18 + 4


def test_time_that_is_left_goes_to_what_was_left(tmp_path, monkeypatch):
    clock = Clock(monkeypatch)
    sections = [clock.section('a', 1, [4, 4, 4, 4]), clock.section('b', 9, [1])]
    records = run(sections, DAY, {}, tmp_path, 30, show=lambda line: None)
    assert states(records['a']) == ['done'] * 4
    assert rows_of(records['b'])[0]['at'] == 5  # in its turn


def test_a_fault_of_the_device_leaves_the_rest_and_is_tried_last(tmp_path, monkeypatch):
    order = []

    def job(name, faulty):
        order.append(name)
        if faulty:
            raise RuntimeError('illegal address')
        yield {'name': name}

    def section(name, *faulty) -> Section:
        jobs = [(f'{i}', lambda i=i, f=f: job(f'{name}{i}', f)) for i, f in enumerate(faulty)]
        return Section(name, name, 1, lambda session: jobs, tables.plain())

    def call() -> dict:
        order.clear()
        return run(sections, DAY, {}, tmp_path, 100, show=lambda line: None)

    sections = [section('a', False, True, False), section('b', False)]
    monkeypatch.setattr(days, 'device_is_broken', lambda: True)
    records = call()
    assert order == ['a0', 'a1']
    assert states(records['a']) == ['done', 'failed', 'left'] and states(records['b']) == ['left']
    why = 'after a, 1 the device fails: call again'
    assert days.left_jobs(records['b']) == {why: ['0']}
    records = call()
    assert order == ['a2', 'b0', 'a1']
    assert states(records['a']) == ['done', 'failed', 'done'] and states(records['b']) == ['done']
    assert not days.left_jobs(records['a']) and days.bad_jobs(records['a']).keys() == {'1'}


def test_what_a_machine_lacks_is_no_mistake(tmp_path):
    def job():
        raise NeedsMore('needs 3 GiB')

    def full():
        yield {'size': 1}
        raise torch.cuda.OutOfMemoryError('no')

    jobs = [('one', job), ('two', full)]
    section = Section('a', 'A', 1, lambda session: jobs, tables.plain())
    record = run([section], DAY, {}, tmp_path, 9, show=lambda line: None)['a']
    assert days.left_jobs(record) == {'needs 3 GiB': ['one'], 'out of memory': ['two']}
    text = tables.report([section], {'a': record}, {})
    assert 'Left, needs 3 GiB: one.' in text and 'Nothing was found' in text


def test_registers_are_read_from_the_caches_of_triton(monkeypatch):
    from triton.runtime.jit import JITFunction

    def _thing_kernel():
        pass

    kernel = JITFunction(_thing_kernel)
    launched = SimpleNamespace(n_regs=40)
    kernel.device_caches = {0: ({'key': launched, 'other': SimpleNamespace()}, 'target')}
    tuned = SimpleNamespace(fn=kernel)
    module = ModuleType('mmlinattn.ops.made_up')
    module._thing_kernel, module.again = tuned, kernel
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert ('_thing_kernel', launched) in [*kernels.compiled()]
    older = SimpleNamespace(n_regs=50)
    del kernel.device_caches
    kernel.cache = {0: {'key': older}}
    assert [found for name, found in kernels.compiled() if name == '_thing_kernel'] == [older]


def test_launches_that_are_compiled_first():
    tasks = kernels.launches(Session(CPU, tiny=False))
    assert len(set(tasks)) == len(tasks)
    assert {setup.dtype for _, setup, _ in tasks} == set(checks.DTYPES)
    small = replace(SETUP, dtype=torch.float32, head_dim=16)
    assert kernels.launch(('linear', small, True), math.inf)
    assert not kernels.launch(('linear', small, True), 0.0)
    assert not kernels.launch(('linear', SETUP, True), math.inf)  # no kernel for these


def test_tuner(tmp_path, monkeypatch):
    class Config(NamedTuple):
        block: int

    tables_of = {'query_output': 1, 'anchor_state': 1, 'ripple_far': 1}
    asked, saved = [], []

    def tune(names, size, precision, run, device, until):
        asked.append((*names, size, precision))
        if names == ['ripple_far']:
            raise ValueError("run does not launch 'ripple_far'")
        assert not until() and len(run()) >= 4
        return {names[0]: {precision: {size: Config(32)}}}

    monkeypatch.setattr(kernels.tuning, 'tune', tune)
    monkeypatch.setattr(kernels.tuning, 'save', lambda path, *_: saved.append(path.name))
    monkeypatch.setattr(kernels.launch_table, 'table', lambda device: tables_of)
    monkeypatch.setattr(kernels.launch_table, 'cache_path', lambda: tmp_path / 'kept.json')
    monkeypatch.setattr(days.Session, 'needs_gpu', lambda self: None)
    monkeypatch.setattr(Problem, 'step', lambda self, form: tuple(self.leaves) + (form,))
    jobs = dict(kernels.tune(DAY, tmp_path, 60.0))
    rows = [*jobs['rala, bfloat16, d 32'](), *jobs['linear, bfloat16, d 32']()]
    assert rows == [{'kernel': 'query_output', 'type': 'half', 'size': '32', 'block': 32}]
    assert saved == ['tuning_table.json', 'kept.json']
    (row,) = jobs['random-walk, float32, d 32']()
    assert (row['kernel'], row['type'], row['size']) == ('anchor_state', 'float', '32x64')
    # A kernel that an operator does not launch is asked for, one that is tuned is not.
    assert [call[0] for call in asked] == [
        'query_output',
        'ripple_far',
        'ripple_far',
        'anchor_state',
    ]


def test_the_crossing_is_between_the_last_two_sides():
    ratios = [(64, 4.0), (256, 2.0), (1024, 0.5), (4096, 0.25)]
    assert speed.crossing(ratios) == '512'
    assert speed.crossing([(64, 0.9), *ratios[1:]]) == '512'
    assert speed.crossing(ratios[2:]) == 'below 1024'
    assert speed.crossing(ratios[:2]) == 'above 256'


def test_goes_with_torch_and_triton_alone(root, tmp_path):
    names = ('mmengine', 'mmcv', 'rich', 'matplotlib')
    code = (
        f'import sys; sys.modules.update(dict.fromkeys({names}))\n'
        'from benchmarks import gpu\n'
        f'argv = ["--device", "{DEVICE}", "--tiny", "--out", {str(tmp_path)!r}, "--only"]\n'
        'sys.exit(gpu.main(argv + ["repeats", "bandwidth", "layers", "backbones"]))'
    )
    done = subprocess.run([sys.executable, '-c', code], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    left = re.findall(r'(\w+): 0 done, [1-9]\d* left \(needs mmengine and mmcv\)', done.stdout)
    assert left == ['layers', 'backbones']
    assert f'repeats: {2 * len(OPERATORS)} done' in done.stdout
    assert not (tmp_path / 'bandwidth.png').exists()


@pytest.mark.parametrize(
    'argv, message',
    [
        ('--device cpu', 'needs --tiny'),
        ('--device tpu --tiny', "got 'tpu'"),
        ('--device mps --tiny', "got 'mps'"),
        ('--device cpu --tiny --minutes 0', 'must be positive, got 0.0'),
        ('--device cpu --tiny --only nothing', "'nothing'"),
    ],
)
def test_bad_command_lines(argv, message, capsys):
    with pytest.raises(SystemExit):
        gpu.parse_args(argv.split())
    assert message in capsys.readouterr().err
