"""Sections that time operators."""

import statistics
from dataclasses import replace
from functools import cache, partial
from itertools import product
from typing import Callable, Iterable, List, Sequence, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..baselines import flash_bla
from ..cases import OURS, Setup, map_shape
from ..cases.problems import TIMED, Problem
from ..jobs import Jobs, NeedsMore, Row, Session
from ..machine import error_line
from ..measure import captured, copy_bandwidth, forward, interleave, wall
from ..suite import MODES

# Batch, heads and tokens, in the order of their value.
SIZES = ((8, 16, 16384), (8, 16, 4096), (1, 8, 16384), (1, 8, 4096), (1, 8, 65536), (8, 16, 65536))
MAX_PAIRS = 2**36  # pairs of tokens that softmax attention is timed with
TORCH, SDPA, LIBRARY = f'{OURS} torch', 'SDPA', 'flash_bla'
# The memory layout that the library needs: it copies q, k and v of a projection.
CONTIGUOUS = f'{OURS} contiguous'


def _problem(session: Session, name: str, batch: int, heads: int, tokens: int) -> Problem:
    """Return a problem whose q, k and v are views of one projection."""
    dim, dtype = (16, torch.float32) if session.tiny else (64, torch.bfloat16)
    setup = Setup(map_shape(tokens), batch, heads, dim, dtype, session.device, True, 'triton')
    return Problem.of('linear' if name == SDPA else name, setup)


def _call(problem: Problem, name: str) -> Tuple[Callable[[], Tensor], List[Tensor]]:
    """Return our operator or a rival, and the tensors that get a gradient."""
    setup, leaves = problem.setup, [*problem.leaves.values()]
    q, k, v = leaves[:3]
    if name == SDPA:
        return partial(F.scaled_dot_product_attention, q, k, v), [q, k, v]
    if name in (LIBRARY, CONTIGUOUS):
        leaves = [setup.leaf(x.contiguous()) for x in (q, k, v)]
        problem = replace(problem, leaves=dict(zip('qkv', leaves)))
    if name == LIBRARY:
        q, k, v = leaves
        call = partial(flash_bla.linear, q, k, v)
        if problem.name == 'rala':
            call = partial(flash_bla.rala, q, k, v, setup.rotary_tables())
        return call, leaves
    return partial(problem.run, 'torch' if name == TORCH else 'auto'), leaves


def _median(call: Callable[[], object], session: Session) -> float:
    """Return the median seconds on the device of a call."""
    call()
    rounds, seconds = (1, 0.0) if session.tiny else (7, 0.03)
    return statistics.median(interleave({'': call}, session.device, rounds, seconds)[''])


@cache
def copy_speed(session: Session) -> float:
    """Return the bytes per second of :func:`benchmarks.measure.copy_bandwidth`, measured once."""
    return copy_bandwidth(session.device, *((1, 2**20) if session.tiny else (20,)))


def host(session: Session) -> Jobs:
    """Time eager calls with the host's work, and the same work as a CUDA graph."""
    counts = (64,) if session.tiny else (1024, 4096, 16384)
    cases = product((SDPA, *TIMED), counts)
    return {f'{name}, {n} tokens': partial(_host, session, name, n) for name, n in cases}


def _host(session: Session, name: str, tokens: int) -> Iterable[Row]:
    problem = _problem(session, name, 1, 8, tokens)
    call, leaves = _call(problem, name)

    def step() -> Sequence[Tensor]:
        out = call()
        return (out.detach(), *torch.autograd.grad(out, leaves, problem.grad))

    runs: List[Callable[[], Sequence[Tensor]]] = [partial(forward, call), step]
    for mode, run in zip(MODES, runs):
        seconds, calls = (0.0, 1) if session.tiny else (0.05, 10)
        eager = wall(run, session.synchronize, seconds, calls)
        row: Row = dict(operator=name, tokens=tokens, mode=mode, eager_ms=1e3 * eager)
        if session.gpu:
            row['graph_ms'] = 1e3 * _median(captured(run)[0], session)
        yield row


def operators(session: Session) -> Jobs:
    """Time forward and backward pass of every operator and of its rivals."""
    jobs: Jobs = {}
    sizes = ((1, 1, 64),) if session.tiny else SIZES
    for size, name in product(sizes, (*TIMED, SDPA)):
        rivals = [SDPA] if name == SDPA else [OURS, TORCH]
        if name == SDPA and size[0] * size[1] * size[2] ** 2 > MAX_PAIRS:
            continue
        if name in ('linear', 'rala') and flash_bla.installed():
            rivals += [CONTIGUOUS, LIBRARY]
        for rival in rivals:
            title = f'{name} by {rival}, {size[2]} tokens, B x H {size[0]}x{size[1]}'
            jobs[title] = partial(_operator, session, name, size, rival)
    return jobs


def _operator(session: Session, name: str, size: Tuple[int, int, int], rival: str) -> Iterable[Row]:
    """Time an operator; the least bytes are those of inputs, gradients and output, once each."""
    try:
        problem = _problem(session, name, *size)
        call, leaves = _call(problem, rival)
        out = call()
        inputs, output = (sum(x.nbytes for x in xs) for xs in (leaves, [out]))
        backward = partial(torch.autograd.grad, out, leaves, problem.grad, retain_graph=True)
        row: Row = dict(zip(('batch', 'heads', 'tokens'), size), baseline=rival)
        for mode, run, least in (
            ('forward', partial(forward, call), inputs + output),
            ('backward', backward, 2 * inputs + output),
        ):
            seconds = _median(run, session)
            share = least / seconds / copy_speed(session)
            yield dict(row, operator=name, mode=mode, ms=1e3 * seconds, bytes=least, share=share)
    except Exception as error:
        if rival != LIBRARY:
            raise
        raise NeedsMore(f'{LIBRARY}: {error_line(error)}') from error
