"""Check of the kernels at their first use on a GPU.

When ``backend='auto'`` first wants the kernels of an operator, they run on small fixed inputs.
These have the dtype, head size and options of the call. The kernels must compile, launch, agree
with the torch implementation in float64 in outputs and gradients, and give the same bits twice.
Then a call of the size class of the user's is timed with both implementations. Kernels that fail or
are slower are not chosen. The verdicts are kept on disk, see :mod:`.kernel_verdicts`.

``MMLINATTN_GPU_CHECK=0`` trusts the kernels; ``1`` checks also GPUs that are listed as verified,
once in each process, and ignores the verdicts on disk.

``torch.compile`` never traces the check and CUDA graphs never capture it: there the verdicts that
are known decide, and where none is the torch implementation runs.
"""

import math
import os
import sys
import time
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from . import kernel_verdicts
from .kernel_verdicts import FAILED, PASSED, SLOWER, Verdict
from .numerics import is_capturing, warn_once
from .timing import seconds_of

VARIABLE = 'MMLINATTN_GPU_CHECK'
SETTINGS = ('', '0', '1')
SMALL_MAP = (21, 31)  # an odd number of tokens, several chunks
# Relative errors of outputs and of gradients, about ten times those in Triton's interpreter.
TOLERANCES = {
    torch.float32: (1e-4, 2e-3),
    torch.float16: (4e-3, 2e-2),
    torch.bfloat16: (3e-2, 1e-1),
}
# Sides of the maps that are timed: a call belongs to the smallest with as many tokens, or the last.
TIMED_SIDES = (16, 32, 64, 128)
TIMED_CALLS = 5
CURE = "The torch implementation runs instead. 'mmlinattn doctor --gpu' checks all kernels."


@dataclass(frozen=True)
class Trial:
    """Small calls of an operator that are like a call of the user.

    Attributes:
        variant: options that select the compiled kernels, such as ``'elu+1, rotary'``.
        dtype: dtype of the tokens.
        masked: True if the call has a padding mask.
        training: True if it records gradients.
        shapes: returns the shapes of the tensors for B images of N tokens.
        run: computes the output, or a tuple of them, from a backend (``'torch'`` or ``'triton'``),
            (H, W), a padding mask or None, and the tensors.
        same_bits: True if the gradients are the same on every run. A library's convolution may
            not be.
    """

    variant: str
    dtype: torch.dtype
    masked: bool
    training: bool
    shapes: Callable[[int, int], Sequence[Tuple[int, ...]]]
    run: Callable[..., Any]
    same_bits: bool = True

    def key(self, operator: str) -> str:
        words = [operator, self.variant, str(self.dtype).removeprefix('torch.')]
        words += ['padding'] * self.masked + ['training'] * self.training
        return ', '.join(filter(None, words))


_verdicts: Dict[Tuple[int, str], Verdict] = {}
_switched_off: Dict[str, str] = {}


def check_setting(value: str) -> str:
    """Raise ValueError unless ``MMLINATTN_GPU_CHECK`` is 0, 1 or empty."""
    if value not in SETTINGS:
        raise ValueError(f'{VARIABLE} must be 0 or 1, got {value!r}')
    return value


SETTING = check_setting(os.environ.get(VARIABLE, ''))


def rejection(
    operator: str, num_tokens: int, device: torch.device, trial: Callable[[], Trial]
) -> Optional[str]:
    """Return why ``backend='auto'`` must not choose the kernels of an operator, or None.

    Args:
        operator: its public name.
        num_tokens: N of the call.
        trial: makes small calls like it.
    """
    if operator in _switched_off:
        return _switched_off[operator]
    if SETTING == '0':
        return None
    index = device.index or 0
    if torch.compiler.is_compiling() or is_capturing(device):
        return _known(index, trial().key(operator))
    if SETTING != '1' and kernel_verdicts.is_verified(index):
        return None
    small = trial()
    key = small.key(operator)
    verdict = _verdicts.get((index, key)) or _first(index, key, lambda: agreement(small, device))
    if verdict.state == PASSED:
        side = next((s for s in TIMED_SIDES if s * s >= num_tokens), TIMED_SIDES[-1])
        key = f'{key}, {side * side} tokens'
        verdict = _verdicts.get((index, key)) or _first(
            index, key, lambda: speed(small, device, side)
        )
    return None if verdict.state == PASSED else verdict.reason


@torch.compiler.assume_constant_result
def _known(index: int, key: str) -> Optional[str]:
    """Return why kernels must not run by the verdicts so far; a constant for torch.compile."""
    if SETTING != '1' and kernel_verdicts.is_verified(index):
        return None
    verdict = _verdicts.get((index, key))
    if verdict is None and SETTING != '1':
        verdict = kernel_verdicts.load(index).get(key)
    if verdict is None:
        reason = 'the kernels are not checked on this GPU'
        warn_once(
            f'mmlinattn: {key}: {reason}, so the torch implementation is compiled or captured. '
            'Run the model once before, and its kernels are checked.'
        )
        return reason
    return None if verdict.state == PASSED else verdict.reason


def _first(index: int, key: str, check: Callable[[], Verdict]) -> Verdict:
    """Return the verdict of another process, or check."""
    with kernel_verdicts.one_process():
        found = {} if SETTING == '1' else kernel_verdicts.load(index)
        verdict = found.get(key)
        if verdict is None:
            start = time.monotonic()
            verdict = check()._replace(seconds=round(time.monotonic() - start, 2))
            kernel_verdicts.save(index, key, verdict)
            _say(index, key, verdict)
    _verdicts[index, key] = verdict
    return verdict


def _say(index: int, key: str, verdict: Verdict) -> None:
    if verdict.state == FAILED:
        device = torch.cuda.get_device_name(index)
        warnings.warn(f'mmlinattn: {key}: the Triton kernels fail on {device}: {verdict.reason}. '
                      f'{CURE}', stacklevel=2)  # fmt: skip
        return
    times = f'{verdict.ratio:.2f}x the speed of the torch implementation'
    chosen = 'are not chosen: ' if verdict.state == SLOWER else ''
    what = f'{chosen}{times}' if verdict.ratio else 'agree with the torch implementation'
    print(
        f'mmlinattn: {key}: the Triton kernels {what} ({verdict.seconds:.1f} s, kept in '
        f'{kernel_verdicts.path()})',
        file=sys.stderr,
    )


def agreement(trial: Trial, device: torch.device) -> Verdict:
    """Compare the kernels with the torch implementation in float64 on a small map."""
    inputs = _inputs(trial, 2, SMALL_MAP, device)
    try:
        expected = _step(trial, 'torch', SMALL_MAP, [x.double() for x in inputs])
        first, second = (_step(trial, 'triton', SMALL_MAP, inputs) for _ in range(2))
        problem = _difference(trial, first, second, expected)
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as error:  # compilers, drivers and launchers raise arbitrary exceptions
        problem = one_line(error)
    return Verdict(FAILED, problem) if problem else Verdict(PASSED)


def _difference(
    trial: Trial, first: List[Tensor], second: List[Tensor], expected: List[Tensor]
) -> Optional[str]:
    """Return what is wrong with two runs, or None."""
    outputs = len(expected) - len(trial.shapes(1, 1)) if trial.training else len(expected)
    for i, (a, b, exact) in enumerate(zip(first, second, expected)):
        is_output = i < outputs
        name = f'output {i}' if is_output else f'gradient {i - outputs}'
        if not a.isfinite().all():
            return f'{name} is not finite'
        error = float((a.double() - exact).norm() / exact.norm().clamp(min=1e-12))
        limit = TOLERANCES[trial.dtype][0 if is_output else 1]
        if not error <= limit:
            return f'{name} differs from the torch implementation by {error:.1e} (limit {limit})'
        if (is_output or trial.same_bits) and not torch.equal(a, b):
            return f'{name} changes from run to run'
    return None


def speed(trial: Trial, device: torch.device, side: int) -> Verdict:
    """Time a call with kernels and with the torch implementation."""
    inputs = _inputs(trial, 2, (side, side), device)
    times = {}
    for backend in ('triton', 'torch'):
        try:
            call = partial(_step, trial, backend, (side, side), inputs)
            call()  # compiles
            times[backend] = _seconds(call, device)
        except torch.cuda.OutOfMemoryError:
            return Verdict(PASSED)
        except Exception as error:
            if backend == 'torch':
                raise
            return Verdict(FAILED, one_line(error))
    ratio = times['torch'] / max(times['triton'], 1e-9)
    if ratio >= 1:
        return Verdict(PASSED, ratio=ratio)
    reason = f'the kernels take {1 / ratio:.2f} times as long as the torch implementation'
    return Verdict(SLOWER, reason, ratio=ratio)


def _seconds(call: Callable[[], Any], device: torch.device) -> float:
    """Return the median duration of a call."""
    return median(seconds_of(call, device) for _ in range(TIMED_CALLS))


def _inputs(
    trial: Trial, batch: int, hw_shape: Tuple[int, int], device: torch.device
) -> List[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = trial.shapes(batch, math.prod(hw_shape))
    return [torch.randn(s, generator=generator).to(device, trial.dtype) for s in shapes]


def _step(
    trial: Trial, backend: str, hw_shape: Tuple[int, int], inputs: Sequence[Tensor]
) -> List[Tensor]:
    """Return the outputs and, in training, the gradients of the inputs."""
    mask = None
    if trial.masked:
        mask = torch.zeros(2, math.prod(hw_shape), dtype=torch.bool, device=inputs[0].device)
        mask[0, -(mask.shape[1] // 3) :] = True
    leaves = [x.detach().requires_grad_(trial.training) for x in inputs]
    with torch.autocast(leaves[0].device.type, enabled=False), torch.enable_grad():
        out = trial.run(backend, hw_shape, mask, *leaves)
        outputs = list(out) if isinstance(out, tuple) else [out]
        if not trial.training:
            return outputs
        cotangents = [torch.linspace(-1, 1, y.numel()).view(y.shape).to(y) for y in outputs]
        return [y.detach() for y in outputs] + list(
            torch.autograd.grad(outputs, leaves, cotangents)
        )


def switch_off(operator: str, error: Exception) -> None:
    """Choose the torch implementation of an operator from now on in this process, and warn."""
    _switched_off[operator] = f'its kernels failed before: {one_line(error)}'
    warnings.warn(
        f'mmlinattn: the Triton kernels of {operator} failed: {one_line(error)}. {CURE} '
        'Please report it with the output of that command.',
        stacklevel=3,
    )


def one_line(error: Exception) -> str:
    """Return type and message of an error, at most 300 characters."""
    return ' '.join(f'{type(error).__name__}: {error}'.split())[:300]


@contextmanager
def checked_anew() -> Iterator[None]:
    """Clear the verdicts of this process, and ignore those on disk inside the block."""
    global SETTING
    before, SETTING = SETTING, '1'
    _verdicts.clear()
    _switched_off.clear()
    try:
        yield
    finally:
        SETTING = before


def verdicts() -> Dict[str, Verdict]:
    """Return the verdicts of this process by key."""
    return {key: verdict for (_, key), verdict in _verdicts.items()}
