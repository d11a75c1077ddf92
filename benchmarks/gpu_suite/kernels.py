"""Sections about the compiled kernels."""

import multiprocessing
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from typing import Iterable, Iterator, List, Tuple

import torch

from mmlinattn.ops import BackendError
from mmlinattn.ops.common import launch_table, tuning

from ..baselines import flash_bla
from ..cases import CASES, Setup, map_shape
from ..measure import forward_backward
from .checks import DIM, GROUPS, TOKENS, WIDTHS, kind
from .problems import DTYPES, OPERATORS, Problem
from .session import Job, NeedsMore, Row, Session
from .speed import GROUPS as SPEED_GROUPS
from .speed import RIVAL_TOKENS

DIMS = (32, 64, 128)
# An operator or a baseline, its input, padding.
Launch = Tuple[str, Setup, bool]
LIBRARY = 'flash_bla'


def compiling(session: Session, seconds: float) -> List[Job]:
    """Compile the kernels of the next sections in parallel, into Triton's cache on disk.

    Args:
        seconds: time limit; the other sections compile the rest.
    """

    def job() -> Iterable[Row]:
        session.needs_gpu()
        memory = torch.cuda.mem_get_info(session.device)[0] // (2 * 2**30)
        workers = int(max(1, min(os.cpu_count() or 1, memory, 32)))
        yield compile_all(launches(session), workers, time.time() + seconds)

    return [('launches of small problems', job)]


def launches(session: Session) -> List[Launch]:
    """Return one launch per variant that Triton compiles separately.

    Variants differ in dtype, width, layout, padding, and sizes that are 1 or multiples of 16.
    """

    def setup(count: int, group: tuple, dim: int, dtype: torch.dtype) -> Setup:
        return Setup(map_shape(count), *group[:2], dim, dtype, session.device, True, group[2])

    fused = [name for name in OPERATORS if OPERATORS[name].kernel]
    setups = [setup(256, (*group, 'triton'), DIM, torch.bfloat16) for group in SPEED_GROUPS]
    setups += [setup(n, g, DIM, t) for n, g, t in product(TOKENS[1::-1], GROUPS, DTYPES)]
    setups += [setup(256, GROUPS[1], DIM, t) for t in DTYPES]
    setups += [setup(1000, GROUPS[1], dim, t) for dim, t in product(WIDTHS, DTYPES)]
    found: List[Launch] = []
    if flash_bla.installed():
        found += [
            (name, setup(count, (1, 8, 'contiguous'), DIM, torch.bfloat16), False)
            for count, name in product(RIVAL_TOKENS, ('linear-library', 'rala-library'))
        ]
    return found + [*product(fused, setups, (False, True))]


def compile_all(tasks: List[Launch], workers: int, until: float) -> Row:
    """Run tasks in their own processes and return a row that counts them.

    Failed tasks are not counted, because the checks report them.
    """
    context = multiprocessing.get_context('spawn')
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        done = [*pool.map(launch, tasks, [until] * len(tasks))]
    return dict(launches=sum(done), of=len(tasks), processes=workers)


def launch(task: Launch, until: float) -> bool:
    """Run the forward and backward pass of a task; return False if it failed or time is over."""
    name, setup, padded = task
    if time.time() > until:
        return False
    try:
        if name.endswith('-library'):
            baseline = CASES[name.removesuffix('-library')].build(setup)[LIBRARY]
            out = baseline.call()
            forward_backward(baseline.call, baseline.inputs, [torch.ones_like(out)])
        else:
            Problem.of(name, setup, padded).step('triton')
    except Exception:
        return False
    return True


def registers(session: Session) -> List[Job]:
    """Launch every operator, forward and backward, and read the registers of its kernels."""

    def job(name: str, dtype: torch.dtype, dim: int) -> Iterable[Row]:
        session.needs_gpu()
        for _, cache in caches():
            cache.clear()  # drops other launches; their kernels stay in the cache on disk
        setup = Setup((64, 64), 2, 3, dim, dtype, session.device, True, 'triton')
        try:
            Problem.of(name, setup).step('triton')
        except BackendError as error:
            raise NeedsMore(str(error)) from error
        session.synchronize()
        rows = [
            dict(
                operator=name,
                kernel=function.strip('_').replace('_kernel', ''),
                dtype=kind(dtype),
                dim=dim,
                registers=kernel.n_regs,
                spilled=kernel.n_spills,
                shared=kernel.metadata.shared,
                warps=kernel.metadata.num_warps,
                stages=kernel.metadata.num_stages,
            )
            for function, kernel in compiled()
        ]
        if not rows:
            raise NeedsMore('needs a Triton that tells what it compiled')
        yield from rows

    names = [name for name in OPERATORS if OPERATORS[name].kernel]
    return [
        (f'{name}, {kind(dtype)}, d {dim}', lambda args=(name, dtype, dim): job(*args))
        for dtype, dim, name in product(DTYPES, DIMS[:1] if session.tiny else DIMS, names)
    ]


def caches() -> Iterator[Tuple[str, dict]]:
    """Yield the names of the package's kernels and Triton's launch caches by device."""
    import triton

    seen = set()
    for module in [m for n, m in list(sys.modules.items()) if n.startswith('mmlinattn.ops')]:
        for name, function in list(vars(module).items()):
            while hasattr(function, 'fn') and not isinstance(function, triton.JITFunction):
                function = function.fn  # unwrap an autotuner
            if isinstance(function, triton.JITFunction) and id(function) not in seen:
                seen.add(id(function))
                caches = getattr(function, 'device_caches', None)  # empty before a launch
                yield name, function.cache if caches is None else caches


def compiled() -> Iterator[tuple]:
    """Yield names and compiled kernels of the package launched since the caches were cleared."""
    for name, cache in caches():
        for entry in cache.values():
            # Triton 3.2 has a dict of kernels per device, later ones a tuple that starts with it.
            kernels = entry[0] if isinstance(entry, tuple) else entry
            for kernel in kernels.values():
                if getattr(kernel, 'n_regs', None) is not None:
                    yield name, kernel


def tune(session: Session, folder: Path, seconds: float) -> List[Job]:
    """Tune the configurations of each kernel by the tuner of the package.

    The best are saved in ``tuning_table.json`` and in the cache that later processes read.

    Args:
        folder: folder of the table.
        seconds: time limit for one operator, dtype and width.
    """
    tuned = set()

    def job(name: str, dtype: torch.dtype, dim: int) -> Iterable[Row]:
        session.needs_gpu()
        shape = (8, 8) if session.tiny else (256, 256)
        setup = Setup(shape, 1, 8, dim, dtype, session.device, True, 'triton')
        problem, device = Problem.of(name, setup), session.device.index or 0
        precision, end = launch_table.kind_of(dtype), time.monotonic() + seconds
        for kernel in list(launch_table.table(device)):
            if kernel.startswith('anchor') != (name == 'random-walk'):
                continue
            anchors = [x.shape[-2] for key, x in problem.leaves.items() if key == 'anchors_q']
            size = launch_table.size_class(dim, *anchors)
            if (kernel, precision, size) in tuned:
                continue
            try:
                found = tuning.tune(
                    [kernel], size, precision, lambda: problem.step('triton'), device,
                    until=lambda: time.monotonic() >= end,
                )  # fmt: skip
            except (ValueError, BackendError):
                continue  # the kernel is not one of this operator, or has no such width
            tuned.add((kernel, precision, size))
            for path in (folder / 'tuning_table.json', launch_table.cache_path()):
                tuning.save(path, found, device)
            for config in (
                c for kinds in found.values() for s in kinds.values() for c in s.values()
            ):
                yield dict(kernel=kernel, type=precision, size=size, **config._asdict())

    names = (
        'random-walk', 'rala', 'ripple, logits', 'ripple', 'linear', 'linear, learnt features'
    )  # fmt: skip
    types = (torch.bfloat16, torch.float32)
    return [
        (f'{name}, {kind(dtype)}, d {dim}', lambda args=(name, dtype, dim): job(*args))
        for dtype, dim, name in product(types, (64, 32, 128), names)
    ]
