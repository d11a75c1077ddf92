"""Sections that check correctness."""

from itertools import product
from typing import Iterable, List, Tuple

import torch
from torch import Tensor

from mmlinattn.ops import BackendError

from ..cases import Setup, map_shape
from .problems import DTYPES, OPERATORS, Problem, forms
from .session import Job, NeedsMore, Row, Session

# Batch, heads and layout.
GROUPS = ((1, 1, 'contiguous'), (2, 3, 'triton'), (4, 12, 'tokens'))
TOKENS = (1, 257, 1000, 4097, 65539)
DIM, WIDTHS = 64, (16, 20, 32, 128)
REPEATS = 20


def kind(dtype: torch.dtype) -> str:
    """Return the name of a dtype: ``'bfloat16'`` for ``torch.bfloat16``."""
    return str(dtype).replace('torch.', '')


def _setup(
    session: Session, hw: Tuple[int, int], group: tuple, dim: int, dtype: torch.dtype
) -> Setup:
    batch, heads, layout = group
    return Setup(hw, batch, heads, dim, dtype, session.device, True, layout)


def _title(name: str, setup: Setup) -> str:
    size = 'x'.join(map(str, setup.hw_shape))
    heads = f'{setup.batch}x{setup.heads}'
    return f'{name}, {size}, B x H {heads}, d {setup.head_dim}, {kind(setup.dtype)}'


def correctness(session: Session) -> List[Job]:
    """Check output and gradients of every operator and form against float64.

    Each runs without padding, and with padding and the gradient of a sum.
    """
    if session.tiny:
        setups = [
            _setup(session, hw, group, 16, dtype)
            for hw, group, dtype in (
                ((1, 1), GROUPS[0], torch.float32),
                ((3, 5), (2, 1, 'triton'), torch.float16),
            )
        ]
    else:
        shapes = [map_shape(count) for count in TOKENS]
        setups = [
            _setup(session, hw, group, DIM, dtype)
            for hw, group, dtype in product(shapes, GROUPS, DTYPES)
        ]
        # 65,539 is prime: also use a 2D map of about as many tokens, and other widths.
        setups += [_setup(session, (253, 259), GROUPS[1], DIM, dtype) for dtype in DTYPES]
        setups += [
            _setup(session, (25, 40), GROUPS[1], dim, dtype)
            for dim, dtype in product(WIDTHS, DTYPES)
        ]
    return [
        (_title(name, setup), lambda name=name, setup=setup: _check(name, setup))
        for setup, name in product(setups, OPERATORS)
    ]


def _check(name: str, setup: Setup) -> Iterable[Row]:
    for padded in (False, True):
        problem = Problem.of(name, setup, padded, flat=padded)
        expected = problem.exact()
        for form in forms(name):
            try:
                row = problem.verdict(problem.step(form), expected)
            except BackendError as error:
                # A GPU may lack the shared memory for wide heads.
                row = dict(refused=str(error))
                if setup.head_dim <= DIM:
                    row['wrong'] = f'refused: {error}'
            yield dict(
                operator=name,
                tokens=setup.num_tokens,
                batch=setup.batch,
                heads=setup.heads,
                dim=setup.head_dim,
                dtype=kind(setup.dtype),
                padded=padded,
                form=form,
                **row,
            )


def _middle(session: Session, dtype: torch.dtype) -> Setup:
    if session.tiny:
        return _setup(session, (3, 5), (1, 1, 'triton'), 16, dtype)
    return _setup(session, (64, 64), GROUPS[1], DIM, dtype)


def precision(session: Session) -> List[Job]:
    """Check the same errors where torch may round factors of float32 products to TF32."""
    dtypes = DTYPES[:1] if session.tiny else DTYPES

    def job(name: str, dtype: torch.dtype) -> Iterable[Row]:
        problem = Problem.of(name, _middle(session, dtype))
        expected = problem.exact()
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision('high')
        try:
            for form in forms(name)[-1 if session.tiny else 0 :]:  # an interpreter has no TF32
                # The torch form uses torch's own products, which may now be rounded to TF32.
                # TF32 has the precision of float16.
                digits = torch.float16 if (form, dtype) == ('torch', torch.float32) else dtype
                row = problem.verdict(problem.step(form), expected, digits)
                yield dict(operator=name, dtype=kind(dtype), form=form, **row)
        finally:
            torch.set_float32_matmul_precision(before)

    return [
        (f'{name}, {kind(dtype)}', lambda name=name, dtype=dtype: job(name, dtype))
        for name, dtype in product(OPERATORS, dtypes)
    ]


def repeats(session: Session) -> List[Job]:
    """Check that repeated runs give the same bits of output and gradients."""
    count, form_of = (2, lambda name: 'torch') if session.tiny else (REPEATS, lambda name: 'auto')

    def job(name: str, dtype: torch.dtype) -> Iterable[Row]:
        setup = _middle(session, dtype)
        if not session.tiny:
            setup = _setup(session, (253, 259), GROUPS[1], DIM, dtype)
        problem, form = Problem.of(name, setup, padded=True), form_of(name)
        first = problem.step(form)
        differ = sorted(
            {i for _ in range(count - 1) for i in _different(first, problem.step(form))}
        )
        names = ['output', *(f'd{leaf}' for leaf in problem.leaves)]
        row: Row = dict(operator=name, dtype=kind(dtype), runs=count)
        if differ:
            row['wrong'] = 'changes from run to run: ' + ', '.join(names[i] for i in differ)
        yield row

    return [
        (f'{name}, {kind(dtype)}', lambda name=name, dtype=dtype: job(name, dtype))
        for name, dtype in product(OPERATORS, (torch.bfloat16, torch.float32))
    ]


def _different(a: Tuple[Tensor, ...], b: Tuple[Tensor, ...]) -> List[int]:
    return [i for i, pair in enumerate(zip(a, b)) if not torch.equal(*pair)]


def graphs(session: Session) -> List[Job]:
    """Compare a captured training step, replayed with new inputs, with the eager step."""

    def job(name: str, dtype: torch.dtype) -> Iterable[Row]:
        session.needs_gpu()
        from .timing import captured

        problem = Problem.of(name, _middle(session, dtype), padded=True)
        replay, results = captured(lambda: problem.step('auto'))
        generator = torch.Generator(session.device).manual_seed(1)
        for leaf in problem.leaves.values():  # new inputs
            order = torch.randperm(leaf.shape[-2], generator=generator, device=session.device)
            leaf.detach().copy_(leaf.detach().index_select(-2, order))
        replay()
        differ = _different(results(), problem.step('auto'))
        row: Row = dict(operator=name, dtype=kind(dtype), tensors=1 + len(problem.leaves))
        if differ:
            row['wrong'] = f'{len(differ)} tensors of a replayed graph differ from eager ones'
        yield row

    return [
        (f'{name}, {kind(dtype)}', lambda name=name, dtype=dtype: job(name, dtype))
        for name, dtype in product(OPERATORS, (torch.bfloat16, torch.float32))
    ]


def large(session: Session) -> List[Job]:
    """Check tensors of more than 2^31 elements against float64.

    Only the first and the last head of the first and the last image are compared: heads are
    independent.
    """

    def job(name: str, layout: str) -> Iterable[Row]:
        if session.tiny:
            setup = _setup(session, (5, 7), (2, 3, layout), 16, torch.float32)
        else:
            session.needs_gpu()
            setup = _setup(session, (512, 513), (8, 16, layout), DIM, torch.bfloat16)
        elements = setup.batch * setup.heads * setup.num_tokens * setup.head_dim
        # q, k, v, output, their gradients, and the same again for intermediate tensors.
        needed = 16 * 2 * elements
        if not session.tiny and needed > torch.cuda.mem_get_info(session.device)[0]:
            raise NeedsMore(f'needs about {needed / 2**30:.0f} GiB of free memory')
        problem = Problem.of(name, setup)
        got = problem.step('auto')
        for b, h in ((0, 0), (-1, -1)):
            part, taken = problem.of_head(b, h, got)
            row = part.verdict(taken, part.exact())
            yield dict(operator=name, elements=elements, layout=layout, image=b, head=h, **row)

    return [
        (f'{name}, {layout}', lambda name=name, layout=layout: job(name, layout))
        for layout, name in product(('contiguous', 'triton'), OPERATORS)
    ]
