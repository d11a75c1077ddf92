"""Sections that check correctness."""

from functools import partial
from itertools import product
from typing import Iterable, List, Sequence, Tuple

import torch
from torch import Tensor

from mmlinattn.ops import BackendError

from ..cases import Setup, map_shape
from ..cases.problems import OPERATORS, TIMED, Problem
from ..jobs import Jobs, NeedsMore, Row, Session
from ..measure import captured

# Map; batch, heads and layout; channels of a head.
Case = Tuple[Tuple[int, int], Tuple[int, int, str], int]
MIDDLE: Case = ((64, 64), (2, 3, 'triton'), 64)
UNEVEN: Case = ((253, 259), (2, 3, 'triton'), 64)
CASES: Tuple[Case, ...] = (
    ((16, 16), (8, 16, 'triton'), 64),  # this one and the next compile what is timed later
    ((16, 16), (1, 8, 'triton'), 64),
    MIDDLE,
    UNEVEN,
    ((1, 257), (2, 3, 'tokens'), 64),
    ((25, 40), (2, 3, 'triton'), 32),
    (map_shape(65539), (1, 1, 'contiguous'), 64),
    ((25, 40), (2, 3, 'triton'), 128),
    ((1, 1), (1, 1, 'contiguous'), 64),
    ((25, 40), (2, 3, 'triton'), 20),
    (map_shape(4097), (4, 12, 'tokens'), 64),
)
LARGE = [((512, 513), (8, 16, layout), 64) for layout in ('triton', 'contiguous')]
TINY: Case = ((3, 5), (2, 1, 'triton'), 16)
DTYPES = ('bfloat16', 'float16', 'float32')


def _problem(session: Session, name: str, case: Case, dtype: str, **options: bool) -> Problem:
    hw_shape, group, dim = case
    setup = Setup(hw_shape, *group[:2], dim, getattr(torch, dtype), session.device, True, group[2])
    return Problem.of(name, setup, **options)


def correctness(session: Session) -> Jobs:
    """Compare output and gradients of every operator and backend with float64."""
    cases, dtypes = ((TINY,), DTYPES[:0:-1]) if session.tiny else (CASES, DTYPES)
    return {
        f'{name}, {dtype}, case {cases.index(case)}': partial(_check, session, name, case, dtype)
        for case, dtype, name in product(cases, dtypes, OPERATORS)
    }


def _check(session: Session, name: str, case: Case, dtype: str) -> Iterable[Row]:
    """Check without padding, and with padding and the gradient of a sum."""
    (batch, heads, layout), dim = case[1:]
    for padded in (False, True):
        problem = _problem(session, name, case, dtype, padded=padded, flat=padded)
        expected = problem.exact()
        for backend in OPERATORS[name].backends:
            row: Row = dict(
                operator=name, tokens=problem.setup.num_tokens, batch=batch, heads=heads, dim=dim,
                dtype=dtype, layout=layout, padded=padded, form=backend,
            )  # fmt: skip
            high = torch.get_float32_matmul_precision() == 'high'
            # The torch form multiplies float32 as TF32 then, which is as precise as float16.
            kind = torch.float16 if (high, backend, dtype) == (True, 'torch', 'float32') else None
            try:
                yield {**row, **problem.verdict(problem.step(backend), expected, kind)}
            except BackendError as error:
                # With wide heads a kernel may lack shared memory.
                yield dict(row, **{'refused' if dim > 64 else 'wrong': str(error)})


def robustness(session: Session) -> Jobs:
    """Return the jobs of CUDA graphs, repeated runs, large tensors and TF32."""
    two = ('bfloat16', 'float32')
    plan: List[tuple] = [
        *product(['graphs'], [_graphs], OPERATORS, [MIDDLE], two),
        *product(['repeats'], [_repeats], OPERATORS, [UNEVEN], two),
        *product(['large'], [_large], TIMED, LARGE, two[:1]),
        *product(['precision'], [_precision], TIMED, [MIDDLE], two),
    ]
    if session.tiny:
        plan = [(*job[:3], TINY, two[1]) for job in plan if job[4] == two[1]]
    return {
        f'{name}, {what}, {dtype}, {case[1][2]}': partial(
            _named, what, check, session, name, case, dtype
        )
        for what, check, name, case, dtype in plan
    }


def _named(what: str, check, session: Session, name: str, case: Case, dtype: str) -> Iterable[Row]:
    for row in check(session, name, case, dtype):
        yield dict(row, operator=name, check=what, dtype=dtype, layout=case[1][2])


def _graphs(session: Session, name: str, case: Case, dtype: str) -> Iterable[Row]:
    """Compare a captured training step, replayed with new inputs, with the eager step."""
    session.needs_gpu()
    problem = _problem(session, name, case, dtype, padded=True)
    replay, results = captured(lambda: problem.step('auto'))
    for leaf in problem.leaves.values():
        leaf.detach().copy_(leaf.detach().flip(-2))
    replay()
    yield _compared(problem, [results(), problem.step('auto')], 'differs from the eager step')


def _repeats(session: Session, name: str, case: Case, dtype: str) -> Iterable[Row]:
    """Check that repeated runs give the same bits of output and gradients."""
    problem = _problem(session, name, case, dtype, padded=True)
    runs = (problem.step('auto') for _ in range(2 if session.tiny else 20))
    yield _compared(problem, runs, 'changes from run to run')


def _compared(problem: Problem, runs: Iterable[Sequence[Tensor]], what: str) -> Row:
    first, *others = runs
    names = ('output', *(f'd{leaf}' for leaf in problem.leaves))
    differ = [n for i, n in enumerate(names) if any(not run[i].equal(first[i]) for run in others)]
    return dict(wrong=f'{", ".join(differ)} {what}') if differ else {}


def _precision(session: Session, name: str, case: Case, dtype: str) -> Iterable[Row]:
    """Check where torch may round factors of float32 products to TF32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision('high')
    try:
        yield from _check(session, name, case, dtype)
    finally:
        torch.set_float32_matmul_precision(before)


def _large(session: Session, name: str, case: Case, dtype: str) -> Iterable[Row]:
    """Compare the first and the last head of more than 2^31 elements with float64."""
    session.needs_gpu()
    # q, k, v, output, their gradients, and the same again for intermediate tensors.
    if torch.cuda.mem_get_info(session.device)[0] < 32 * 2**31:
        raise NeedsMore('needs 64 GiB of free memory')
    problem = _problem(session, name, case, dtype)
    got = problem.step('auto')
    for i in (0, -1):
        part, taken = problem.of_head(i, got)
        yield dict(head=i, **part.verdict(taken, part.exact()))
