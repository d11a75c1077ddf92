"""Runner of cases over sizes: check that baselines agree, then measure them."""

import math
from dataclasses import dataclass, field, replace
from typing import Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from .cases import Baseline, Case, Setup
from .machine import error_line
from .measure import Spread, difference, forward, forward_backward, interleave, peak_memory, slope

MODES = ('forward', 'forward+backward')
# Largest relative error of outputs between baselines with the same result; gradients: 10 times.
TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
STRIDE = 4  # of the first stage of backbones; it defines the number of tokens
# With fewer tokens the call overhead hides the growth.
SLOPE_FROM = 4096


@dataclass(frozen=True)
class Result:
    """Result of one baseline at one size.

    Args:
        size: the map of an operator or a layer, the image of a backbone, ``HxW``.
        tokens: tokens of the map; for a backbone, of its first stage.
        seconds: seconds of every call.
        peak_bytes: peak memory of one call above the memory allocated before.
        error: largest relative difference of an output or gradient from the first baseline; None
            for the first baseline and for those that compute something else.
        skipped: reason why it was not measured, or None.
        failed: True if it was not measured because of an error or a difference from the first
            baseline.
    """

    case: str
    kind: str
    baseline: str
    mode: str
    dtype: str
    batch: int
    size: str
    tokens: int
    seconds: List[float] = field(default_factory=list)
    peak_bytes: int = 0
    error: Optional[float] = None
    skipped: Optional[str] = None
    failed: bool = False

    @property
    def time(self) -> Spread:
        return Spread.of(self.seconds)


@dataclass(frozen=True)
class Effort:
    """Limits on rounds and time.

    Args:
        min_rounds, min_seconds, processor_time: see :func:`benchmarks.measure.interleave`.
        budget: longest call in seconds; a baseline with a longer predicted time is left out.
    """

    min_rounds: int = 5
    min_seconds: float = 1.0
    budget: float = 20.0
    processor_time: bool = False


def run_case(case: Case, setups: Sequence[Setup], mode: str, effort: Effort) -> Iterator[Result]:
    """Measure a case over sizes, small to large.

    A baseline is not measured if it raises an error or differs from the first one although both
    should agree. Its result holds the reason.
    """
    last: Dict[str, Tuple[int, float]] = {}
    for setup in sorted(setups, key=lambda setup: setup.num_tokens):
        setup = replace(setup, training=mode == 'forward+backward')
        size = '{}x{}'.format(*setup.hw_shape)
        tokens = setup.num_tokens
        if case.kind == 'backbone':
            tokens = math.prod(-(-side // STRIDE) for side in setup.hw_shape)
        point = dict(
            case=case.name, kind=case.kind, mode=mode, size=size, tokens=tokens,
            batch=setup.batch, dtype=str(setup.dtype).replace('torch.', ''),
        )  # fmt: skip
        torch.manual_seed(0)
        for result in _run_point(case.build(setup), setup, mode, effort, last, point):
            if not result.skipped:
                last[result.baseline] = tokens, result.time.median
            yield result


def _run_point(
    baselines: Dict[str, Baseline],
    setup: Setup,
    mode: str,
    effort: Effort,
    last: Dict[str, Tuple[int, float]],
    point: dict,
) -> List[Result]:
    steps, results = {}, {}
    first, expected = next(iter(baselines)), None
    for name, baseline in baselines.items():
        results[name] = Result(baseline=name, **point)
        predicted = _predict(baseline, last.get(name), point['tokens'])
        if predicted > effort.budget:
            reason = f'about {predicted:,.0f} s, not run'
            results[name] = replace(results[name], skipped=reason)
            continue
        try:
            step = _step(baseline, mode)
            outs, grads = step()
        except torch.cuda.OutOfMemoryError:
            torch.cuda.empty_cache()
            results[name] = replace(results[name], skipped='out of memory')
            continue
        except Exception as error:  # the others can still be measured
            results[name] = replace(results[name], skipped=error_line(error), failed=True)
            continue
        pair = outs, grads[: len(baseline.inputs)]
        if baseline.same and name == first:
            expected = pair
        elif baseline.same and expected is not None:
            errors = [*map(_difference, pair, expected)]
            results[name] = replace(results[name], error=_largest(errors))
            tolerance = TOLERANCES[setup.dtype]
            # These comparisons are False for NaN.
            if not (errors[0] <= tolerance and errors[1] <= 10 * tolerance):
                reason = f'differs from {first} by {results[name].error:.1e} relative'
                results[name] = replace(results[name], skipped=reason, failed=True)
                continue
        steps[name] = step
        del outs, grads, pair
    del expected
    rounds = effort.min_rounds, effort.min_seconds
    times = interleave(steps, setup.device, *rounds, processor_time=effort.processor_time)
    for name, step in steps.items():
        peak = peak_memory(step, setup.device)
        results[name] = replace(results[name], seconds=times[name], peak_bytes=peak)
    return [results[name] for name in baselines]


def _predict(baseline: Baseline, last: Optional[Tuple[int, float]], tokens: int) -> float:
    if last is None:
        return 0.0
    return last[1] * (tokens / last[0]) ** (2 if baseline.quadratic else 1)


def _step(baseline: Baseline, mode: str) -> Callable[[], Tuple[Sequence[Tensor], Sequence[Tensor]]]:
    if mode == 'forward':
        return lambda: (forward(baseline.call), ())
    wanted = (*baseline.inputs, *baseline.parameters)
    # Gradients that do not depend on the layout. The sum of the outputs and that of their squares
    # are no choice: a LayerNorm at the end makes them constant.
    cotangents = [torch.cos(3 * out) for out in forward(baseline.call)]
    return lambda: forward_backward(baseline.call, wanted, cotangents)


def _difference(got: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    if len(got) != len(expected):
        return math.inf
    return _largest([difference(a, b) for a, b in zip(got, expected)])


def _largest(errors: Sequence[float]) -> float:
    # Unlike Python's max, torch's keeps a NaN.
    return torch.tensor([0.0, *errors], dtype=torch.float64).max().item()


def slopes(results: Sequence[Result]) -> Dict[str, Tuple[float, float]]:
    """Return the exponents of time and peak memory in the tokens, by baseline.

    Only sizes from 4,096 tokens on count, and only baselines with two of them are included. All
    results must have the same case, mode and batch.
    """
    found = {}
    large = [r for r in results if not r.skipped and r.tokens >= SLOPE_FROM]
    for name in dict.fromkeys(r.baseline for r in large):
        points = [r for r in large if r.baseline == name]
        if len({r.tokens for r in points}) < 2:
            continue
        tokens = [r.tokens for r in points]
        time = slope(tokens, [r.time.median for r in points])
        found[name] = time, slope(tokens, [r.peak_bytes for r in points])
    return found
