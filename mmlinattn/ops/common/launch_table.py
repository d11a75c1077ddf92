"""Table of launch configurations by GPU, kernel, dtype and head size.

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

from ...utils import write_text

VARIABLE = 'MMLINATTN_KERNEL_TABLE'


class Config(NamedTuple):
    """Launch configuration of a kernel, and the resources of one program.

    Attributes:
        block: tokens per block; keys of a halo in the tiles of ripple attention.
        warps: warps per program.
        stages: blocks of a loop that are loaded ahead.
        registers: registers per thread.
        shared: bytes of shared memory.
        stack: bytes of spilled registers per thread.
    """

    block: int
    warps: int
    stages: int
    registers: int
    shared: int
    stack: int = 0


# By kernel, then 'half' or 'float', then size class.
Table = Dict[str, Dict[str, Dict[str, Config]]]
# Small blocks, so that tests see several.
INTERPRETED = Config(block=32, warps=4, stages=1, registers=0, shared=0)
SHIPPED = Path(__file__).with_name('kernels.json')


def kind_of(dtype: torch.dtype) -> str:
    """Return ``'half'`` or ``'float'``, the dtype class of the table."""
    return 'float' if dtype == torch.float32 else 'half'


def size_class(dim: int, *others: int) -> str:
    """Return the size class of heads of this width and, for anchors, of their number.

    Example:
        >>> size_class(20), size_class(64, 49), size_class(96, 128)
        ('32', '64x64', '128x128')
    """
    width = next(size for size in (32, 64, 128) if dim <= size)
    return 'x'.join([str(width), *('64' if other <= 64 else '128' for other in others)])


def read(path: Path) -> Dict[str, Table]:
    """Read tables by architecture (``'sm_80'``) or GPU name, written by :func:`write`."""
    return json.loads(
        path.read_text(),
        object_hook=lambda x: {k: Config(*v) if isinstance(v, list) else v for k, v in x.items()},
    )


def write(path: Path, tables: Mapping[str, Table]) -> None:
    """Write tables atomically, one line per entry."""
    text = json.dumps(tables, indent=1, sort_keys=True)
    write_text(path, re.sub(r'\[[^\]]*\]', lambda m: re.sub(r'\s+', ' ', m[0]), text) + '\n')


def merged(first: Mapping[str, Mapping], second: Mapping[str, Mapping]) -> Dict:
    """Merge nested tables; entries of the second take precedence."""
    out = dict(first)
    for key, value in second.items():
        old = out.get(key)
        out[key] = (
            merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
        )
    return out


def cache_path() -> Path:
    """Return the file of measured tables: the environment variable, or the user's cache folder."""
    if os.environ.get(VARIABLE):
        return Path(os.environ[VARIABLE])
    # Unlike Path.home(), it raises no error for a user without a home directory.
    cache = os.environ.get('XDG_CACHE_HOME') or os.path.expanduser('~/.cache')
    return Path(cache) / 'mmlinattn' / 'kernels.json'


def architecture(index: int) -> str:
    """Return the shipped table for a GPU; consumer GPUs have little shared memory, as sm_80."""
    device = torch.cuda.get_device_properties(index)
    shared = device.shared_memory_per_block_optin  # type: ignore[attr-defined]  # not in its types
    large = shared >= 227 * 1024
    return 'sm_90' if device.major >= 9 and large else 'sm_80'


@functools.cache
def table(index: int) -> Table:
    """Return the table of a CUDA device: measured for GPUs of its name, or else shipped."""
    shipped = read(SHIPPED)[architecture(index)]
    path = cache_path()
    try:
        measured = read(path).get(torch.cuda.get_device_name(index), {})
    except (FileNotFoundError, NotADirectoryError):
        return shipped
    except (OSError, ValueError, TypeError, AttributeError) as error:
        warnings.warn(
            f'mmlinattn: {path} is not a kernel table, using the shipped one: {error}',
            stacklevel=2,
        )
        return shipped
    return merged(shipped, measured)


@torch.compiler.assume_constant_result
def entry(index: int, name: str, kind: str, size: str) -> Optional[Config]:
    """Return the configuration of a kernel on a CUDA device, or None.

    A constant for torch.compile, which cannot trace the reading of a file.
    """
    return table(index)[name].get(kind, {}).get(size)
