"""Report versions, mmcv's operators, GPU, kernels and data sets of this machine."""

import argparse
import importlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import warnings
from pathlib import Path
from typing import Iterator, Tuple

import torch
from rich.table import Table

from ..engine.preflight.data import DATA_HINTS
from ..ops.common import dispatch
from ..ops.gpu_check import check_kernels
from ..utils.command_line import plain_console
from ..utils.versions import TESTED, untested
from ..version import __version__

# Name, finding, and state: 'ok', 'note' or 'missing'.
Row = Tuple[str, str, str]
# What to install for a module, where the names differ (docs/installation.md).
INSTALL = {
    'mmengine': 'onedl-mmengine',
    'mmcv': '--no-deps mmcv-lite==2.2.0',
    'mmdet': 'onedl-mmdetection',
    'mmseg': 'onedl-mmsegmentation ftfy',
    'mmpretrain': 'onedl-mmpretrain',
    'cv2': 'opencv-python',
    'PIL': 'pillow',
    'yaml': 'pyyaml',
}
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
            yield name, _why_missing(name, error), 'missing'
            continue
        problem = untested(name, version)
        yield name, f'{version} ({problem})' if problem else version, 'note' if problem else 'ok'


def _why_missing(name: str, error: Exception) -> str:
    lacking = error.name if isinstance(error, ModuleNotFoundError) else None
    if not lacking or '.' in lacking:  # a part of a package is missing
        return ' '.join(f'{type(error).__name__}: {error}'.split())
    needed = f'needs {lacking}' if lacking != name else 'not installed'
    return f'{needed}: pip install {INSTALL.get(lacking, lacking)}'


def operators_of_mmcv() -> Row:
    try:
        spec = importlib.util.find_spec('mmcv._ext')
    except ModuleNotFoundError:
        spec = None
    if spec is None:
        return "mmcv's operators", 'none: docs/installation.md#mmcv-without-compiling', 'missing'
    if not spec.origin or not spec.origin.endswith('.py'):
        return "mmcv's operators", f'compiled, {spec.origin}', 'ok'
    functions = importlib.import_module('mmcv._ext').OPERATORS
    own = dict.fromkeys(re.sub('_(for|back)ward$', '', name) for name in functions)
    names = importlib.metadata.packages_distributions().get('mmcv') or ()
    mmcv = ' and '.join(f'{name} {importlib.metadata.version(name)}' for name in names) or 'mmcv'
    found = (
        f'{mmcv} has none compiled; mmlinattn stands in with torchvision for {", ".join(own)}. '
        'Others need compiled mmcv: docs/installation.md#compiled-mmcv'
    )
    return "mmcv's operators", found, 'ok'


def devices() -> Iterator[Row]:
    if not torch.cuda.is_available():
        why = 'this torch is made without CUDA' if torch.version.cuda is None else 'no GPU is found'
        yield 'GPU', f'none: {why}; {torch.get_num_threads()} threads on the CPU', 'note'
    for index in range(torch.cuda.device_count()):
        try:
            facts = torch.cuda.get_device_properties(index)
        except RuntimeError as error:  # another process has it, or it needs a reset
            yield f'GPU {index}', ' '.join(f'{error}'.split())[:200], 'missing'
            return
        name = f'{facts.name}, {facts.total_memory / 2**30:.0f} GiB'
        yield f'GPU {index}', f'{name}, compute capability {facts.major}.{facts.minor}', 'ok'
    backend = os.environ.get(dispatch.ENV_VARIABLE)
    if backend:
        yield dispatch.ENV_VARIABLE, backend, 'note'
    problem = dispatch.TRITON_PROBLEM or 'the Triton kernels need a GPU'
    if torch.cuda.is_available():
        problem = dispatch.gpu_problem(torch.cuda.current_device())
    if problem:
        yield 'kernels', f'torch implementations run: {problem}', 'note'
    else:
        yield 'kernels', f'Triton {importlib.import_module("triton").__version__}', 'ok'


def data_sets() -> Iterator[Row]:
    for name, hint in DATA_HINTS.items():
        root = Path(name)
        found = root.is_dir() and any(root.iterdir())
        yield str(root), 'found' if found else hint.format(root=root), 'ok' if found else 'note'


def main(args: argparse.Namespace) -> int:
    if args.gpu:
        return _check_kernels()
    rows = [*packages(), operators_of_mmcv(), *devices(), *data_sets()]
    table = Table('what', title='mmlinattn doctor')
    table.add_column('found', overflow='fold')  # addresses are not cut
    for name, found, state in rows:
        table.add_row(name, found, style=STYLES[state])
    plain_console().print(table)
    return int(any(state == 'missing' for *_, state in rows))


def _check_kernels() -> int:
    """Print how the kernels compare with float64, by operator and dtype."""
    if not torch.cuda.is_available():
        raise RuntimeError('--gpu needs a CUDA device, and torch finds none')
    device = torch.device('cuda', torch.cuda.current_device())
    problem = dispatch.gpu_problem(device.index)
    if problem:
        raise RuntimeError(f'--gpu: {problem}')
    name = torch.cuda.get_device_name(device)
    print(f'{name}, torch {torch.__version__}, Triton {dispatch.triton_version()}')
    table = Table('operator', 'dtype', 'output', 'gradients', 'finding', title='kernels')
    wrong = False
    for found in check_kernels(device):
        errors = f'{found.output:.1e}', f'{found.gradients:.1e}'
        style = 'green'
        if found.problem:
            style = 'yellow' if found.is_unsupported else 'red'
            wrong |= not found.is_unsupported
        dtype = str(found.dtype).removeprefix('torch.')
        table.add_row(found.operator, dtype, *errors, found.problem or 'agrees', style=style)
    plain_console().print(table)
    if wrong:
        print(f'Set {dispatch.ENV_VARIABLE}=torch to run without kernels, and please report this.')
    return int(wrong)
