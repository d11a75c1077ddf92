"""The check of kernels at their first use, with fakes of the GPU and kernels made wrong."""

import importlib
import json
import time
import warnings
from collections import Counter
from types import SimpleNamespace

import pytest
import torch

from mmlinattn import ops
from mmlinattn.ops import Rotary, use_backend
from mmlinattn.ops.common import (
    dispatch,
    kernel_check,
    kernel_fallback,
    kernel_verdicts,
    launch_table,
    numerics,
)
from mmlinattn.ops.common.kernel_check import Trial
from mmlinattn.ops.epilogue import triton_ops as epilogue_triton_ops
from mmlinattn.ops.kernel_report import check_all
from mmlinattn.ops.linear import triton_ops as linear_triton_ops
from tests.programs import Program

pytestmark = pytest.mark.slow

CPU = torch.device('cpu')
KERNELS = dict(
    exact=lambda q, k: q * k,
    rounded=lambda q, k: q * k * (1 + 1e-6),
    wrong=lambda q, k: q * k * 1.01,
    nan=lambda q, k: q * k / (q - q[0, 0, 0]),
    random=lambda q, k: q * k * (1 + 1e-6 * torch.rand(())),
    wrong_gradient=lambda q, k: (q * k).detach() + 1.02 * (q * k - (q * k).detach()),
)


def uncompilable(q, k):
    raise RuntimeError('ptxas: registers\nline 2')


def trial_of(kernel, training=True, counts=None, dtype=torch.float32):
    def run(backend, hw_shape, mask, q, k):
        if counts is not None:
            counts[backend] += 1
        return kernel(q, k) if backend == 'triton' else q * k

    return Trial('words', dtype, False, training, lambda b, n: [(b, 2, n, 16)] * 2, run)


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    """Tensors of the CPU stand for those of a GPU whose environment the fixture names."""
    found = SimpleNamespace(name='Fake 1, sm_90', folder=tmp_path)
    monkeypatch.setenv(launch_table.VARIABLE, str(tmp_path / 'kernels.json'))
    monkeypatch.setattr(kernel_verdicts, 'environment', lambda index: found.name)
    monkeypatch.setattr(torch.cuda, 'get_device_name', lambda index: found.name)
    monkeypatch.setattr(kernel_check, '_verdicts', {})
    monkeypatch.setattr(kernel_check, '_switched_off', {})
    monkeypatch.setattr(kernel_check, 'SETTING', '')
    monkeypatch.setattr(kernel_check, 'SMALL_MAP', (5, 7))
    monkeypatch.setattr(kernel_check, 'TIMED_SIDES', (4, 8))
    numerics.warn_once.cache_clear()
    kernel_verdicts.is_verified.cache_clear()
    # No real durations, unless a test asks for them.
    found.seconds = kernel_check._seconds
    monkeypatch.setattr(kernel_check, '_seconds', lambda call, device: call() and 1.0)
    serves = lambda backend, q, reason: reason() if reason else 'no kernel'  # noqa: E731
    monkeypatch.setattr(dispatch, '_triton_unsupported', serves)
    yield found
    kernel_verdicts.is_verified.cache_clear()


@pytest.mark.parametrize(
    'kernel, training, reason',
    [
        ('exact', True, ''),
        ('rounded', True, ''),
        ('wrong', False, 'output 0 differs from the torch implementation by 1.0e-02'),
        ('nan', False, 'output 0 is not finite'),
        ('random', False, 'output 0 changes from run to run'),
        ('wrong_gradient', False, ''),
        ('wrong_gradient', True, 'gradient 0 differs from the torch implementation by 2.0e-02'),
    ],
)
def test_kernels_that_are_wrong_fail(gpu, kernel, training, reason):
    verdict = kernel_check.agreement(trial_of(KERNELS[kernel], training), CPU)
    assert verdict.state == ('failed' if reason else 'passed')
    assert verdict.reason.startswith(reason) and bool(verdict.reason) == bool(reason)


def test_kernels_that_do_not_compile_fail_in_one_line(gpu):
    verdict = kernel_check.agreement(trial_of(uncompilable), CPU)
    assert tuple(verdict[:2]) == ('failed', 'RuntimeError: ptxas: registers line 2')


def reject(kernel, operator='op', tokens=10, **options):
    trial = trial_of(kernel, **options)
    return kernel_check.rejection(operator, tokens, CPU, lambda: trial)


def test_a_check_runs_once_and_is_kept(gpu, capsys):
    counts = Counter()
    assert reject(KERNELS['exact'], counts=counts) is None
    first = Counter(counts)
    said = capsys.readouterr().err.splitlines()
    assert 'op, words, float32, training: the Triton kernels agree' in said[0]
    assert str(gpu.folder / 'gpu_check.json') in said[0] and len(said) == 2  # and its speed
    assert reject(KERNELS['exact'], counts=counts) is None and counts == first
    kernel_check._verdicts.clear()  # another process
    assert reject(uncompilable, counts=counts) is None and counts == first
    assert capsys.readouterr().err == ''
    assert reject(KERNELS['exact'], tokens=50, counts=counts) is None  # a larger size class
    assert counts['triton'] > first['triton']


def test_another_gpu_or_kernel_is_checked_anew(gpu, monkeypatch):
    assert reject(KERNELS['exact']) is None
    kernel_check._verdicts.clear()
    gpu.name = 'Fake 2, sm_90'
    with pytest.warns(UserWarning, match='fail on Fake 2'):
        assert 'ptxas' in reject(uncompilable)
    kernel_check._verdicts.clear()
    gpu.name = 'Fake 1, sm_90'
    assert reject(uncompilable) is None  # the verdict on disk
    monkeypatch.setattr(kernel_verdicts, '_code', lambda: 'changed')
    kernel_check._verdicts.clear()
    with pytest.warns(UserWarning, match='fail'):
        assert 'ptxas' in reject(uncompilable)


def test_slower_kernels_are_not_chosen(gpu, monkeypatch, capsys):
    monkeypatch.setattr(kernel_check, '_seconds', gpu.seconds)

    def slow(q, k):
        time.sleep(0.01)
        return q * k

    assert 'times as long as the torch implementation' in reject(slow)
    assert 'are not chosen: 0.' in capsys.readouterr().err


def test_a_failure_is_one_warning_and_the_torch_form_from_then_on(gpu):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        for _ in range(3):
            assert 'ptxas' in reject(uncompilable)
    (warning,) = caught
    text = str(warning.message)
    assert text.startswith('mmlinattn: op, words, float32, training: the Triton kernels fail')
    assert 'mmlinattn doctor --gpu' in text


@pytest.mark.parametrize('setting, checks', [('0', 0), ('', 0), ('1', 1)])
def test_verified_gpus_are_checked_on_request(gpu, monkeypatch, tmp_path, setting, checks):
    verified = tmp_path / 'verified.json'
    verified.write_text(json.dumps([gpu.name]))
    monkeypatch.setattr(kernel_verdicts, 'VERIFIED', verified)
    monkeypatch.setattr(kernel_check, 'SETTING', setting)
    counts = Counter()
    assert reject(KERNELS['exact'], counts=counts) is None
    assert (counts['triton'] > 0) == bool(checks)


def test_the_shipped_list_is_a_list_of_environments():
    found = json.loads(kernel_verdicts.VERIFIED.read_text())
    assert isinstance(found, list) and all(isinstance(name, str) for name in found)


def test_a_setting_that_is_neither_0_nor_1():
    with pytest.raises(ValueError, match="MMLINATTN_GPU_CHECK must be 0 or 1, got 'yes'"):
        kernel_check.check_setting('yes')


@pytest.mark.parametrize('content', ['', '[]', '{"format": 1, "x', '{"format": 9}', '{"a": 1}'])
def test_a_damaged_file_is_written_anew(gpu, content):
    (gpu.folder / 'gpu_check.json').write_text(content)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        assert reject(KERNELS['exact']) is None
    assert len(caught) == (content != '{"format": 9}')
    assert len(kernel_verdicts.load(0)) == 2


def test_a_folder_that_cannot_be_written(gpu, monkeypatch):
    (gpu.folder / 'file').write_text('')
    monkeypatch.setenv(launch_table.VARIABLE, str(gpu.folder / 'file' / 'kernels.json'))
    with pytest.warns(UserWarning, match='cannot be kept'):
        assert reject(KERNELS['exact']) is None
    assert len(kernel_check.verdicts()) == 2


PROCESS = """
import pathlib, sys, time, torch
from mmlinattn.ops.common import kernel_check, kernel_verdicts
kernel_verdicts.environment = lambda index: 'Fake'
kernel_check.SETTING = ''  # not that of the fork server, which may have started in another test
def run(backend, hw_shape, mask, q):
    time.sleep(0.1)
    if backend == 'triton':
        open(sys.argv[1], 'a').write('x')
    return q
trial = kernel_check.Trial('', torch.float32, False, False, lambda b, n: [(b, 1, n, 2)], run)
kernel_check.speed = lambda *args: kernel_check.Verdict('passed')
runs, name = map(pathlib.Path, sys.argv[1:])
runs.with_name(f'started_{name}').touch()
while len([*runs.parent.glob('started_*')]) < 2:
    time.sleep(0.01)
print(kernel_check.rejection('op', 5, torch.device('cpu'), lambda: trial))
"""


def test_one_process_checks_and_the_others_read(tmp_path, root):
    script, table = tmp_path / 'process.py', {launch_table.VARIABLE: str(tmp_path / 'k.json')}
    script.write_text(PROCESS)
    started = [
        Program(script, [tmp_path / 'runs', i], tmp_path / f'{i}.out', [root], **table)
        for i in range(2)
    ]
    assert [process.end() for process in started] == [0, 0]
    assert [process.text().splitlines()[-1] for process in started] == ['None'] * 2
    assert (tmp_path / 'runs').read_text() == 'xx'  # two runs of one check


def operator_calls(dtype, training):
    def rand(*shape):
        return torch.rand(shape, dtype=dtype).requires_grad_(training)

    q, k, v = rand(1, 2, 12, 16), rand(1, 2, 12, 16), rand(1, 2, 12, 16)
    mask = torch.zeros(1, 12, dtype=torch.bool)
    anchors, landmarks = rand(2, 5, 16), rand(1, 2, 5, 16)
    position = Rotary((3, 4), 16)
    maps = rand(1, 12, 8)
    shared, by_head = [(16, 16), (16, 32), (16,)], [(2, 16, 16), (2, 16, 32), (2, 16)]
    grid = dict(hw_shape=(3, 4))
    return {
        'linear': lambda: ops.linear_attention(q, k, v),
        'linear, mean': lambda: ops.linear_attention(
            q, k, v, feature_map='relu', mean_normaliser=True, key_padding_mask=mask
        ),
        'rala': lambda: ops.rala_attention(q, k, v, rotary=position, key_padding_mask=mask),
        'mala': lambda: ops.mala_attention(q, k, v, rotary=position),
        'walk': lambda: ops.random_walk_attention(q, k, v, anchors, anchors),
        'step': lambda: ops.random_walk_attention(
            q, k, v, landmarks, landmarks, steps=1, key_padding_mask=mask
        ),
        'nystrom': lambda: ops.nystrom_attention(q, k, v, landmarks, landmarks),
        'ripple': lambda: ops.ripple_attention(q, k, v, rand(1, 2, 12, 3), **grid),
        'stick': lambda: ops.ripple_attention(
            q, k, v, rand(1, 2, 12, 2), stick='plain', key_padding_mask=mask, **grid
        ),
        'adaptive': lambda: ops.adaptive_features(q, k, *(rand(*s) / 16 for s in shared)),
        'adaptive, heads': lambda: ops.adaptive_features(q, k, *(rand(*s) / 16 for s in by_head)),
        'gate': lambda: ops.local_gate(maps, maps, maps, rand(8, 1, 3, 3), rand(8), **grid),
        'no gate': lambda: ops.local_gate(maps, maps, None, rand(8, 1, 3, 3), None, **grid),
    }


@pytest.mark.parametrize('name', [*operator_calls(torch.float32, False)])
@pytest.mark.parametrize(
    'dtype, training', [(torch.float32, True), (torch.bfloat16, False)], ids=['train', 'bfloat16']
)
def test_the_kernels_of_every_operator_pass(gpu, monkeypatch, name, dtype, training):
    """In Triton's interpreter; the trial is like the call in all that selects kernels."""
    monkeypatch.setattr(kernel_check, 'speed', lambda *args: kernel_check.Verdict('passed'))
    operator_calls(dtype, training)[name]()
    key, _ = kernel_check.verdicts()
    verdict = kernel_check.verdicts()[key]
    assert verdict.state == 'passed', verdict.reason
    assert key.endswith('training') == training
    assert ('padding' in key) == (name in ('linear, mean', 'rala', 'step', 'stick'))


def test_an_operator_with_wrong_kernels_runs_its_torch_form(gpu, monkeypatch):
    run = linear_triton_ops.query_output
    monkeypatch.setattr(linear_triton_ops, 'query_output', lambda *a: run(*a) * 1.5)
    q, k, v = torch.rand(3, 1, 2, 12, 16)
    with pytest.warns(UserWarning, match='linear_attention, identity.* fail on Fake 1'):
        out = ops.linear_attention(q, k, v)
    assert torch.equal(out, ops.linear_attention(q, k, v, backend='torch'))
    with use_backend('triton'):
        assert not torch.allclose(out, ops.linear_attention(q, k, v))  # not checked


def broken(*args, **kwargs):
    raise RuntimeError('no launch')


def break_inside(monkeypatch, operator):
    """Let the function inside a custom operator fail, behind torch's dispatcher."""
    for device in operator._backend_fns:
        monkeypatch.setitem(operator._backend_fns, device, broken)


@pytest.mark.parametrize('name', [*operator_calls(torch.float32, True)])
def test_kernels_that_fail_later_in_the_forward_pass(gpu, monkeypatch, name):
    monkeypatch.setattr(kernel_check, 'SETTING', '0')
    call = operator_calls(torch.float32, True)[name]
    torch.manual_seed(0)
    with use_backend('torch'):
        expected = call()
    monkeypatch.setattr('mmlinattn.ops.common.triton_helpers.Launch.start', broken)
    break_inside(monkeypatch, epilogue_triton_ops._forward)
    torch.manual_seed(0)
    with pytest.warns(UserWarning, match='failed: RuntimeError: no launch') as caught:
        found = call()
    assert len(caught) == 1
    for a, b in zip(*(x if isinstance(x, tuple) else (x,) for x in (found, expected))):
        assert torch.equal(a, b)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        call()  # the torch form from now on


@pytest.mark.parametrize(
    'name, function',
    [
        ('linear', 'linear.triton_ops.backward'),
        ('rala', 'linear.triton_ops.backward'),
        ('mala', 'linear.triton_ops.backward'),
        ('walk', 'anchors.triton_ops._backward'),
        ('step', 'anchors.triton_ops._backward'),
        ('nystrom', 'anchors.triton_ops._backward'),
        ('ripple', 'ripple.triton_ops._backward'),
        ('stick', 'ripple.triton_ops._backward'),
        ('adaptive', 'adaptive.triton_ops._backward'),
        ('adaptive, heads', 'adaptive.triton_ops._backward'),
        ('gate', 'epilogue.triton_ops._gate_backward'),
    ],
)
def test_kernels_that_fail_later_in_the_backward_pass(gpu, monkeypatch, name, function):
    """The gradients are those of the torch form, of all tensors, and training goes on."""
    monkeypatch.setattr(kernel_check, 'SETTING', '0')

    def step(backend):
        torch.manual_seed(0)
        call = operator_calls(torch.float32, True)[name]
        leaves = [
            cell.cell_contents for cell in call.__closure__ or ()
            if isinstance(cell.cell_contents, torch.Tensor) and cell.cell_contents.requires_grad
        ]  # fmt: skip
        with use_backend(backend):
            out = call()
        outputs = out if isinstance(out, tuple) else (out,)
        loss = sum((y * torch.linspace(-1, 1, y.numel()).view(y.shape)).sum() for y in outputs)
        return torch.autograd.grad(loss, leaves)

    expected = step('torch')
    module, _, attribute = function.rpartition('.')
    owner = importlib.import_module(f'mmlinattn.ops.{module}')
    if hasattr(getattr(owner, attribute), '_backend_fns'):  # a custom operator
        break_inside(monkeypatch, getattr(owner, attribute))
    else:
        monkeypatch.setattr(owner, attribute, broken)
    with pytest.warns(UserWarning, match='failed: RuntimeError: no launch'):
        found = step('auto')
    assert len(found) == len(expected) >= 1
    for a, b in zip(found, expected):
        assert b.norm() > 0 and (a - b).norm() < 1e-3 * b.norm()


def test_errors_of_forced_kernels_and_of_memory_are_raised(gpu, monkeypatch):
    monkeypatch.setattr(kernel_check, 'SETTING', '0')
    q, k, v = torch.rand(3, 1, 2, 12, 16)
    monkeypatch.setattr(linear_triton_ops, 'query_output', broken)
    with use_backend('triton'), pytest.raises(RuntimeError, match='no launch'):
        ops.linear_attention(q, k, v)

    def full(*args):
        raise torch.cuda.OutOfMemoryError('CUDA out of memory')

    monkeypatch.setattr(linear_triton_ops, 'query_output', full)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        ops.linear_attention(q, k, v)
    assert kernel_fallback.current_fallback() is None


def test_compiled_code_takes_known_verdicts_and_no_check(gpu, monkeypatch):
    """One graph; the check is not part of it, and an operator without verdict is torch's."""
    monkeypatch.setattr(kernel_check, 'agreement', broken)
    monkeypatch.setattr(dispatch, 'is_tracing', lambda: False)
    trial = trial_of(KERNELS['exact'])

    def call(q):
        reason = kernel_check.rejection('op', q.shape[0], CPU, lambda: trial)
        return q + (1 if reason is None else 2)

    compiled = torch.compile(call, fullgraph=True, backend='eager')
    with pytest.warns(UserWarning, match='Run the model once before'):
        assert compiled(torch.zeros(1)).item() == 2
    kernel_check._verdicts[0, trial.key('op')] = kernel_check.Verdict('passed')
    torch._dynamo.reset()
    compiled = torch.compile(call, fullgraph=True, backend='eager')
    assert compiled(torch.zeros(1)).item() == 1


def test_the_report_of_all_operators(gpu, monkeypatch):
    """It ignores what is on disk, and keeps what it finds."""
    monkeypatch.setattr('mmlinattn.ops.kernel_report.SIDE', 3)
    monkeypatch.setattr('mmlinattn.ops.kernel_report.DTYPES', (torch.float32,))
    passed = kernel_check.Verdict('passed', ratio=2)
    monkeypatch.setattr(kernel_check, 'agreement', lambda *args: passed)
    monkeypatch.setattr(kernel_check, 'speed', lambda *args: passed)
    found = check_all(CPU)
    operators = {key.split(',')[0] for key in found}
    assert operators == {
        'linear_attention', 'rala_attention', 'mala_attention', 'random_walk_attention',
        'nystrom_attention', 'ripple_attention', 'adaptive_features', 'local_gate',
    }  # fmt: skip
    assert len(found) == 8 * 2 * 2  # inference and training; agreement and speed
    assert kernel_verdicts.load(0) == found
    assert kernel_check.SETTING == ''
