"""``mmlinattn doctor --gpu`` reports wrong kernels; here the kernels are functions of this file."""

import math

import pytest
import torch

from mmlinattn.ops import BackendError, gpu_check
from mmlinattn.ops.common import dispatch

CPU = torch.device('cpu')


def sound(mask, backend, x):
    return x * x


def wrong_output(mask, backend, x):
    return x * x + (backend == 'triton')


def wrong_gradient(mask, backend, x):
    return x * x.detach() if backend == 'triton' else x * x


def not_finite(mask, backend, x):
    return x * (float('nan') if backend == 'triton' else 1)


class NotANumber(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * float('nan')


def second_gradient(mask, backend, x, y):
    return x + (NotANumber.apply(y) if backend == 'triton' else y)


def unsupported(mask, backend, x):
    raise BackendError('no such kernel')


def failing(mask, backend, x):
    raise RuntimeError('ptxas\n  failed')


@pytest.mark.parametrize(
    'call, problem, is_unsupported',
    [
        (sound, '', False),
        (wrong_output, 'the output differs', False),
        (wrong_gradient, 'a gradient differs', False),
        (not_finite, 'the output differs', False),
        (unsupported, 'no such kernel', True),
        (failing, 'ptxas failed', False),
    ],
)
def test_a_wrong_kernel_is_found_in_each_dtype(monkeypatch, call, problem, is_unsupported):
    monkeypatch.setattr(gpu_check, '_calls', lambda: {'operator': (call, [(2, 3, 15, 8)])})
    found = list(gpu_check.check_kernels(CPU))
    assert [x.dtype for x in found] == list(gpu_check.TOLERANCES)
    for x in found:
        assert x.problem.startswith(problem) and bool(x.problem) == bool(problem)
        assert x.is_unsupported == is_unsupported


def test_nan_of_a_later_gradient_is_shown(monkeypatch):
    calls = {'operator': (second_gradient, [(2, 3, 15, 8)] * 2)}
    monkeypatch.setattr(gpu_check, '_calls', lambda: calls)
    for found in gpu_check.check_kernels(CPU):
        assert 'by nan' in found.problem and math.isnan(found.gradients)


def test_an_output_that_changes_from_run_to_run_is_found(monkeypatch):
    runs = iter(range(100))

    def drifting(mask, backend, x):
        return x * (1 + 1e-6 * next(runs))

    monkeypatch.setattr(gpu_check, '_calls', lambda: {'operator': (drifting, [(2, 3, 15, 8)])})
    assert 'from run to run' in next(gpu_check.check_kernels(CPU)).problem


def test_a_broken_device_is_a_finding_of_every_operator():
    """After an illegal access every call fails, that of the next operator's tensors, too."""
    found = [*gpu_check.check_kernels(torch.device('cuda', 99))]
    assert len(found) > 8 and all(finding.problem for finding in found)


@pytest.mark.skipif(dispatch.TRITON_PROBLEM is not None, reason=f'{dispatch.TRITON_PROBLEM}')
def test_the_kernels_pass_with_a_small_map(monkeypatch):
    monkeypatch.setattr(gpu_check, 'MAP', (3, 5))
    monkeypatch.setattr(gpu_check, 'TOLERANCES', {torch.float32: (1e-4, 2e-3)})
    device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
    found = {x.operator: x.problem for x in gpu_check.check_kernels(device)}
    assert len(found) >= 8 and not any(found.values()), found
