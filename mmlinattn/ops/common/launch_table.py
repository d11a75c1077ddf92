"""How each kernel is launched: one table, by GPU, kernel, type and size of the heads.

``kernels.json`` beside this file is shipped: for sm_80 and sm_90, chosen by compiled registers,
stack and shared memory (``tests/test_ops/compile_kernels.py`` writes it). A table that
:mod:`.tuning` measured on this machine's GPU comes first. Configurations change how sums are
split, and so results by no more than rounding; a process reads a table once and keeps to it. Heads
without an entry have no kernel there: it would mostly wait for registers.
"""

import functools
import json
import os
import re
import warnings
from pathlib import Path
from typing import Dict, Mapping, NamedTuple, Optional

import torch

VARIABLE = 'MMLINATTN_KERNEL_TABLE'


class Config(NamedTuple):
    """How one kernel is launched, and what one program of it then takes.

    Attributes:
        block: tokens that a program holds at once; keys of a halo in ripple attention's tiles.
        warps: of a program.
        stages: blocks of a loop that are loaded ahead.
        registers: of a thread.
        shared: bytes of shared memory.
        stack: bytes that a thread has in slow memory, for too few registers.
    """

    block: int
    warps: int
    stages: int
    registers: int
    shared: int
    stack: int = 0


# By kernel, then 'half' or 'float', then size class.
Table = Dict[str, Dict[str, Dict[str, Config]]]
# Small blocks: tests see several of them.
INTERPRETED = Config(block=32, warps=4, stages=1, registers=0, shared=0)
SHIPPED = Path(__file__).with_name('kernels.json')


def kind_of(dtype: torch.dtype) -> str:
    """``'half'`` or ``'float'``."""
    return 'float' if dtype == torch.float32 else 'half'


def size_class(dim: int, *others: int) -> str:
    """The entry that serves heads of this width, and for random walks this many anchors.

    Example:
        >>> size_class(20), size_class(64, 49), size_class(96, 128)
        ('32', '64x64', '128x128')
    """
    width = next(size for size in (32, 64, 128) if dim <= size)
    return 'x'.join([str(width), *('64' if other <= 64 else '128' for other in others)])


def read(path: Path) -> Dict[str, Table]:
    """Tables by architecture (``'sm_80'``) or GPU, as :func:`write` left them."""
    return json.loads(
        path.read_text(),
        object_hook=lambda x: {k: Config(*v) if isinstance(v, list) else v for k, v in x.items()},
    )


def write(path: Path, tables: Mapping[str, Table]) -> None:
    """One line an entry."""
    text = json.dumps(tables, indent=1, sort_keys=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = path.with_name(f'.{path.name}.{os.getpid()}')
    whole.write_text(re.sub(r'\[[^\]]*\]', lambda m: re.sub(r'\s+', ' ', m[0]), text) + '\n')
    os.replace(whole, path)  # a reader sees all of it or what was there before


def merged(first: Mapping[str, Mapping], second: Mapping[str, Mapping]) -> Dict:
    """Nested tables; entries of the second come first."""
    out = dict(first)
    for key, value in second.items():
        old = out.get(key)
        nested = isinstance(value, dict) and isinstance(old, dict)
        out[key] = merged(old, value) if nested else value  # type: ignore[arg-type]
    return out


def cache_path() -> Path:
    """Where measured tables are: the environment variable, or the user's cache folder."""
    if os.environ.get(VARIABLE):
        return Path(os.environ[VARIABLE])
    # Unlike Path.home(), it raises no error for a user without a home directory.
    cache = os.environ.get('XDG_CACHE_HOME') or os.path.expanduser('~/.cache')
    return Path(cache) / 'mmlinattn' / 'kernels.json'


def architecture(index: int) -> str:
    """Which shipped table suits a GPU: consumer GPUs have little shared memory, as sm_80."""
    device = torch.cuda.get_device_properties(index)
    large = device.shared_memory_per_block_optin >= 227 * 1024  # type: ignore[attr-defined]
    return 'sm_90' if device.major >= 9 and large else 'sm_80'


@functools.cache
def table(index: int) -> Table:
    """Of a CUDA device: what was measured for GPUs of its name, else what is shipped."""
    shipped = read(SHIPPED)[architecture(index)]
    path = cache_path()
    try:
        measured = read(path).get(torch.cuda.get_device_name(index), {})
    except (FileNotFoundError, NotADirectoryError):
        return shipped
    except (OSError, ValueError, TypeError, AttributeError) as error:
        warnings.warn(
            f'mmlinattn: {path} is no table of kernels, the shipped one is used: {error}',
            stacklevel=2,
        )
        return shipped
    return merged(shipped, measured)


@torch.compiler.assume_constant_result
def entry(index: int, name: str, kind: str, size: str) -> Optional[Config]:
    """Of a kernel for a CUDA device, or None. A compiler takes it as a constant: it cannot follow
    the reading of a file."""
    return table(index)[name].get(kind, {}).get(size)
