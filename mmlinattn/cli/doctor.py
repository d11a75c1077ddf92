"""Report versions, mmcv's operators, GPU, kernels and data sets of this machine.

Exit code 1: training cannot work, because a framework is missing or its import fails.
"""

import importlib
import importlib.util
import os
import platform
import warnings
from pathlib import Path
from typing import Iterator, List, Optional, Tuple

import torch
from rich.table import Table

from ..engine.preflight.data import DATA_HINTS
from ..ops.common import dispatch, launch_table
from ..utils.command_line import Parser, errors_in_one_line, plain_console
from ..utils.versions import TESTED, untested
from ..version import __version__

# Name, finding, and state: 'ok', 'note' or 'missing'.
Row = Tuple[str, str, str]
STYLES = {'ok': 'green', 'note': 'yellow', 'missing': 'red'}


def packages() -> Iterator[Row]:
    yield 'mmlinattn', f'{__version__}, {Path(__file__).resolve().parents[1]}', 'ok'
    yield 'Python', f'{platform.python_version()}, {platform.platform()}', 'ok'
    for name in TESTED:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter('ignore')
                version = importlib.import_module(name).__version__
        except Exception as error:  # broken installations raise arbitrary exceptions
            yield name, ' '.join(f'{type(error).__name__}: {error}'.split()), 'missing'
            continue
        problem = untested(name, version)
        yield name, f'{version} ({problem})' if problem else version, 'note' if problem else 'ok'


def operators_of_mmcv() -> Row:
    try:
        spec = importlib.util.find_spec('mmcv._ext')
    except ModuleNotFoundError:
        spec = None
    if spec is None:
        return "mmcv's operators", 'none: docs/installation.md', 'missing'
    if spec.origin and spec.origin.endswith('.py'):
        return "mmcv's operators", "the stand-in of this package (mmcv-lite, or no '_ext')", 'ok'
    return "mmcv's operators", f'compiled, {spec.origin}', 'ok'


def devices() -> Iterator[Row]:
    if not torch.cuda.is_available():
        why = 'this torch is made without CUDA' if torch.version.cuda is None else 'no GPU is found'
        yield 'GPU', f'none: {why}; {torch.get_num_threads()} threads on the CPU', 'note'
    for index in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(index)
        table = launch_table.architecture(index)
        name = f'{facts.name}, {facts.total_memory / 2**30:.0f} GiB, {table}'
        yield f'GPU {index}', name, 'ok'
    backend = os.environ.get(dispatch.ENV_VARIABLE)
    if backend:
        yield dispatch.ENV_VARIABLE, backend, 'note'
    if dispatch.TRITON_PROBLEM:
        yield 'kernels', f'torch implementations run: {dispatch.TRITON_PROBLEM}', 'note'
    elif not torch.cuda.is_available():
        yield 'kernels', 'torch implementations run: the Triton kernels need a GPU', 'note'
    else:
        yield 'kernels', f'Triton {importlib.import_module("triton").__version__}', 'ok'


def data_sets() -> Iterator[Row]:
    for name, hint in DATA_HINTS.items():
        root = Path('data') / name
        found = root.is_dir() and any(root.iterdir())
        yield str(root), 'found' if found else hint.format(root=root), 'ok' if found else 'note'


def main(argv: Optional[List[str]] = None) -> int:
    args = Parser(description=__doc__).parse_args(argv)
    with errors_in_one_line(args.debug):
        rows = [*packages(), operators_of_mmcv(), *devices(), *data_sets()]
    table = Table('what', 'found', title='mmlinattn doctor')
    for name, found, state in rows:
        table.add_row(name, found, style=STYLES[state])
    plain_console().print(table)
    return int(any(state == 'missing' for *_, state in rows))
