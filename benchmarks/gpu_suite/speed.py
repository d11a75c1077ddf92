"""Sections that measure time and memory."""

import math
import statistics
from dataclasses import asdict, replace
from functools import cache
from importlib import util
from itertools import product
from typing import Callable, Dict, Iterable, List, Sequence, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..cases import CASES, OURS, Case, Setup, map_shape
from ..measure import copy_bandwidth, forward, interleave, peak_memory
from ..suite import MODES, Effort, run_case
from .problems import OPERATORS, Problem
from .session import Job, NeedsMore, Row, Session
from .timing import captured, wall

DIM = 64
TINY = Effort(min_rounds=1, min_seconds=0.0)
QUICK = Effort(min_rounds=5, min_seconds=0.1, budget=1.0)
GROUPS = ((8, 16), (1, 1), (1, 8))
RIVAL_TOKENS = (4096, 32768)
# Textbook formulas are left out: at these sizes they take too much memory and time.
BASELINES = (OURS, f'{OURS} torch', 'flash_bla', 'linear', 'SDPA softmax')


def dtype_of(session: Session) -> torch.dtype:
    return torch.float32 if session.tiny else torch.bfloat16


def step_setup(
    session: Session, count: int, group: Tuple[int, int], layout: str = 'triton'
) -> Setup:
    """Return the setup of a training step with so many tokens, (batch, heads) and a layout."""
    dim = 16 if session.tiny else DIM
    hw_shape, dtype = map_shape(count), dtype_of(session)
    return Setup(hw_shape, *group, dim, dtype, session.device, True, layout)


def median(call: Callable[[], object], session: Session) -> float:
    """Return the median seconds on the device of a call that has run before."""
    rounds, seconds = (1, 0.0) if session.tiny else (7, 0.03)
    return statistics.median(interleave({'': call}, session.device, rounds, seconds)[''])


@cache
def copy_speed(session: Session) -> float:
    """Return the bytes per second of :func:`benchmarks.measure.copy_bandwidth`, measured once."""
    return copy_bandwidth(session.device, *((1, 2**20) if session.tiny else (20,)))


def _size(x: Tensor) -> int:
    return x.numel() * x.element_size()


def bandwidth(session: Session) -> List[Job]:
    """Measure the bandwidth of forward and backward pass as a share of the copy bandwidth.

    The bytes are the minimum: inputs and the output gradient read once, results written once.
    """

    def job(name: str, count: int, group: Tuple[int, int]) -> Iterable[Row]:
        layout = 'contiguous' if name.startswith('ripple') else 'triton'
        problem = Problem.of(name, step_setup(session, count, group, layout))
        out = problem.run('auto')
        leaves = [*problem.leaves.values()]
        inputs, output = sum(map(_size, leaves)), _size(out)

        def backward() -> object:
            return torch.autograd.grad(out, leaves, problem.grad, retain_graph=True)

        calls = {'forward': lambda: forward(lambda: problem.run('auto')), 'backward': backward}
        least = {'forward': inputs + output, 'backward': 2 * inputs + output}
        for mode, call in calls.items():
            call()
            seconds = median(call, session)
            yield dict(
                operator=name, tokens=count, batch=group[0], heads=group[1], mode=mode,
                ms=1e3 * seconds, bytes=least[mode],
                share=least[mode] / seconds / copy_speed(session),
            )  # fmt: skip

    counts = (64,) if session.tiny else (16384, 65536, 262144, 4096, 1048576)
    groups = ((1, 1),) if session.tiny else GROUPS
    return [
        (f'{name}, {count} tokens, B x H {b}x{h}', lambda args=(name, count, (b, h)): job(*args))
        for (b, h), count, name in product(groups, counts, OPERATORS)
    ]


def _baselines(
    session: Session, case: str, setups: Sequence[Setup], mode: str, keep: Sequence[str] = ()
) -> Iterable[Row]:
    """Yield rows of the suite, with errors under ``'wrong'``.

    An exception of flash_bla is no error of this package.
    """
    chosen = CASES[case]
    if keep:
        chosen = replace(chosen, build=lambda setup: _only(CASES[case], setup, keep))
    for result in run_case(chosen, setups, mode, TINY if session.tiny else QUICK):
        row: Row = asdict(result)
        row.update(heads=setups[0].heads, layout=setups[0].layout, copy=copy_speed(session))
        if result.failed and (result.error is not None or result.baseline != 'flash_bla'):
            row['wrong'] = f'{result.size}, {result.baseline}: {result.skipped}'
        yield row


def _only(case: Case, setup: Setup, keep: Sequence[str]) -> dict:
    return {name: baseline for name, baseline in case.build(setup).items() if name in keep}


def operators(session: Session) -> List[Job]:
    """Measure every operator against its baselines, in two layouts of q, k and v."""
    names = [name for name, case in CASES.items() if case.kind == 'operator']
    counts = (16, 64) if session.tiny else RIVAL_TOKENS
    groups = ((1, 1),) if session.tiny else GROUPS

    def job(name: str, mode: str, group: Tuple[int, int], layout: str) -> Iterable[Row]:
        setups = [step_setup(session, count, group, layout) for count in counts]
        yield from _baselines(session, name, setups, mode, () if session.tiny else BASELINES)

    return [
        (f'{name}, {mode}, B x H {g[0]}x{g[1]}, {layout}',
         lambda args=(name, mode, g, layout): job(*args))
        for g, layout, mode, name in product(groups, ('contiguous', 'triton'), MODES, names)
    ]  # fmt: skip


def walls(session: Session) -> List[Job]:
    """Measure the time of the device alone (a replayed graph) and with the host (eager calls)."""

    def job(name: str, count: int) -> Iterable[Row]:
        problem = Problem.of(name, step_setup(session, count, (1, 8)))
        q, k, v = (problem.leaves[x] for x in 'qkv')
        calls: Dict[Tuple[str, str], Callable[[], Sequence[Tensor]]] = {
            (name, MODES[0]): lambda: forward(lambda: problem.run('auto')),
            (name, MODES[1]): lambda: problem.step('auto'),
        }
        if name == 'linear':  # once per size
            calls['SDPA softmax', MODES[0]] = lambda: forward(
                lambda: F.scaled_dot_product_attention(q, k, v)
            )
        for (what, mode), call in calls.items():
            eager = wall(call, session.synchronize, 0.0 if session.tiny else 0.05)
            row: Row = dict(operator=what, tokens=count, mode=mode, eager_ms=1e3 * eager)
            if session.gpu:
                row['graph_ms'] = 1e3 * median(captured(call)[0], session)
            yield row

    counts = (64,) if session.tiny else (1024, 4096, 16384, 65536)
    return [
        (f'{name}, {count} tokens', lambda args=(name, count): job(*args))
        for count, name in product(counts, OPERATORS)
    ]


def crossover(session: Session) -> List[Job]:
    """Find the number of tokens from which an operator is faster than softmax attention."""
    counts = (16, 64) if session.tiny else tuple(2**i for i in range(6, 15))

    def job(name: str, mode: str, group: Tuple[int, int]) -> Iterable[Row]:
        clocks = {'device': [], 'wall': []}
        for count in counts:
            problem = Problem.of(name, step_setup(session, count, group))
            q, k, v = (problem.leaves[x] for x in 'qkv')

            def softmax(q: Tensor = q, k: Tensor = k, v: Tensor = v) -> Tensor:
                return F.scaled_dot_product_attention(q, k, v)

            def step(problem: Problem = problem, leaves=(q, k, v), call=softmax) -> object:
                return torch.autograd.grad(call(), leaves, problem.grad)

            pair = {
                'ours': lambda p=problem: forward(lambda: p.run('auto')),
                'softmax': lambda call=softmax: forward(call),
            }
            if mode == MODES[1]:
                pair = {'ours': lambda p=problem: p.step('auto'), 'softmax': step}
            for call in pair.values():
                call()
            rounds, seconds = (1, 0.0) if session.tiny else (7, 0.02)
            times = interleave(pair, session.device, rounds, seconds)
            ours, theirs = (statistics.median(times[x]) for x in pair)
            clocks['device'].append((count, ours / theirs))
            limit = 0.0 if session.tiny else 0.02
            ours, theirs = (wall(call, session.synchronize, limit) for call in pair.values())
            clocks['wall'].append((count, ours / theirs))
        for clock, ratios in clocks.items():
            yield dict(
                operator=name, mode=mode, batch=group[0], heads=group[1], clock=clock,
                crossing=crossing(ratios), ratios={n: round(r, 3) for n, r in ratios},
            )  # fmt: skip

    groups = ((1, 1),) if session.tiny else ((1, 8), (8, 16))
    return [
        (f'{name}, {mode}, B x H {g[0]}x{g[1]}', lambda args=(name, mode, g): job(*args))
        for mode, g, name in product(MODES, groups, OPERATORS)
    ]


def crossing(ratios: Sequence[Tuple[int, float]]) -> str:
    """Return the number of tokens from which the ratio stays below 1, interpolated by a power law.

    Example:
        >>> crossing([(64, 4.0), (256, 1.0), (1024, 0.25)])
        '256'
        >>> crossing([(64, 0.5), (256, 0.2)]), crossing([(64, 2.0), (256, 1.2)])
        ('below 64', 'above 256')
    """
    slower = [i for i, (_, ratio) in enumerate(ratios) if ratio >= 1]
    if not slower:
        return f'below {ratios[0][0]}'
    last = slower[-1]
    if last == len(ratios) - 1:
        return f'above {ratios[-1][0]}'
    (n, a), (m, b) = ratios[last : last + 2]
    return f'{n * (m / n) ** (math.log(a) / math.log(a / b)):.0f}'


def needs_openmmlab() -> None:
    """Raise NeedsMore if layers and backbones cannot be imported."""
    missing = [name for name in ('mmengine', 'mmcv') if util.find_spec(name) is None]
    if missing:
        raise NeedsMore('needs ' + ' and '.join(missing))


LAYERS = ('rala-layer', 'random-walk-layer', 'attentions')


def layers(session: Session) -> List[Job]:
    """Measure layers against their baselines."""
    counts = (64,) if session.tiny else (4096, 16384, 65536)

    def job(name: str, mode: str) -> Iterable[Row]:
        needs_openmmlab()
        # The sizes for the random walk are those of the first stage of SegFormer-B0.
        heads, dim = (1, 32) if name == 'random-walk-layer' else (1, 64)
        setups = [
            Setup(map_shape(n), 1, heads, dim, dtype_of(session), session.device) for n in counts
        ]
        yield from _baselines(session, name, setups, mode)

    return [
        (f'{name}, {mode}', lambda args=(name, mode): job(*args))
        for mode, name in product(MODES, LAYERS)
    ]


BACKBONES = {
    'ravlt-s': (OURS,),
    'mit-b0': ('RWGKA', 'spatial reduction'),
    'ravlt-s-linear': (OURS,),
}


def backbones(session: Session) -> List[Job]:
    """Measure time and peak memory of encoders on images."""

    def job(name: str, mode: str, side: int) -> Iterable[Row]:
        needs_openmmlab()
        setup = Setup((side, side), 1, 1, DIM, dtype_of(session), session.device)
        yield from _baselines(session, name, [setup], mode, () if session.tiny else BACKBONES[name])

    names = ('ravlt-nano',) if session.tiny else tuple(BACKBONES)
    sides = (64,) if session.tiny else (512, 1024, 2048, 4096)
    return [
        (f'{name}, {mode}, {side}x{side}', lambda args=(name, mode, side): job(*args))
        for mode, side, name in product(MODES[:1] if session.tiny else MODES, sides, names)
    ]


def profiles(session: Session) -> List[Job]:
    """Profile training steps: time by kernel and number of launches."""

    def measure(what: str, step: Callable[[], object]) -> Iterable[Row]:
        from torch.profiler import ProfilerActivity, profile

        step()
        session.synchronize()
        activities = [ProfilerActivity.CPU]
        if session.gpu:
            activities.append(ProfilerActivity.CUDA)
        with profile(activities=activities) as profiler:
            step()
            session.synchronize()
        times: Dict[str, List[float]] = {}
        for event in profiler.events():
            on_device = event.device_type == torch.autograd.DeviceType.CUDA
            if on_device == session.gpu:
                taken = event.time_range.elapsed_us() if session.gpu else event.self_cpu_time_total
                times.setdefault(event.name, []).append(taken)
        total = sum(map(sum, times.values())) or 1.0
        launches = sum(map(len, times.values()))
        peak = peak_memory(step, session.device) / 2**20
        for name in sorted(times, key=lambda name: -sum(times[name]))[:6]:
            yield dict(
                what=what, launches=launches, peak_mib=round(peak, 1), kernel=name[:80],
                calls=len(times[name]), share=sum(times[name]) / total,
            )  # fmt: skip

    def operator(name: str, mode: str) -> Iterable[Row]:
        problem = Problem.of(name, step_setup(session, 64 if session.tiny else 65536, (1, 8)))
        step = problem.step if mode == MODES[1] else lambda form: forward(lambda: problem.run(form))
        yield from measure(f'{name}, {mode}', lambda: step('auto'))

    def backbone(name: str, keep: str) -> Iterable[Row]:
        needs_openmmlab()
        side = 64 if session.tiny else 1024
        setup = Setup((side, side), 1, 1, DIM, dtype_of(session), session.device, True)
        torch.manual_seed(0)
        baseline = CASES[name].build(setup)[keep]

        def step() -> object:
            outs = baseline.call()
            return torch.autograd.grad(sum(o.sum() for o in outs), baseline.parameters)

        yield from measure(f'{name}, {MODES[1]}, {side}x{side}', step)

    models = (('ravlt-nano', OURS),) if session.tiny else (('ravlt-s', OURS), ('mit-b0', 'RWGKA'))
    jobs: List[Job] = [
        (f'{name}, {mode}', lambda args=(name, mode): operator(*args))
        for mode, name in product(MODES, OPERATORS)
    ]
    return jobs + [(name, lambda args=(name, keep): backbone(*args)) for name, keep in models]
