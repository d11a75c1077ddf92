"""Verdicts of the kernel check, kept on disk for each GPU, driver, torch, Triton and kernel code.

The file is ``gpu_check.json`` beside the measured launch table, see
:func:`.launch_table.cache_path`.
"""

import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import re
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Dict, Iterator, NamedTuple, Optional

import torch
from filelock import FileLock, Timeout

from ...utils import write_json
from . import launch_table
from .numerics import warn_once

FORMAT = 1
PASSED, FAILED, SLOWER = 'passed', 'failed', 'slower'
VERIFIED = Path(__file__).with_name('verified_gpus.json')
LOCK_SECONDS = 300


class Verdict(NamedTuple):
    """Result of a check.

    Attributes:
        state: ``'passed'``, ``'failed'`` or ``'slower'``; kernels run only where they passed.
        reason: why they do not run.
        seconds: duration of the check.
        ratio: time of the torch implementation over that of the kernels, 0 if not timed.
    """

    state: str
    reason: str = ''
    seconds: float = 0.0
    ratio: float = 0.0


def path() -> Path:
    """Return the file of the verdicts."""
    return launch_table.cache_path().with_name('gpu_check.json')


@functools.cache
def environment(index: int) -> str:
    """Describe what decides if kernels work: GPU, driver, torch and Triton."""
    device = torch.cuda.get_device_properties(index)
    return (
        f'{device.name}, sm_{device.major}{device.minor}, driver {_driver()}, '
        f'torch {torch.__version__}, Triton {triton_version()}'
    )


def _driver() -> str:
    """Return the version of NVIDIA's driver, or ``'unknown'``; torch does not tell it."""
    try:
        text = Path('/proc/driver/nvidia/version').read_text()
    except OSError:
        return 'unknown'
    found = re.search(r'\b\d+\.\d+(\.\d+)?\b', text)
    return found[0] if found else 'unknown'


@functools.cache
def _code() -> str:
    """Return a digest of the kernels and their launch tables."""
    folder = Path(__file__).resolve().parents[1]
    files = [*sorted(folder.rglob('*.py')), launch_table.SHIPPED]
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    with_measured = launch_table.cache_path()
    if with_measured.is_file():
        digest.update(with_measured.read_bytes())
    return digest.hexdigest()[:12]


@functools.cache
def is_verified(index: int) -> bool:
    """Return True if the kernels were verified on this GPU with these versions."""
    return environment(index) in json.loads(VERIFIED.read_text())


def triton_version() -> Optional[str]:
    """Return the version of Triton without importing it, or None."""
    if importlib.util.find_spec('triton') is None:
        return None
    for name in ('triton', 'pytorch-triton', 'pytorch-triton-rocm', 'triton-windows'):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return 'of an unknown version'


def load(index: int) -> Dict[str, Verdict]:
    """Return the verdicts of a CUDA device by key; none if the file is missing or damaged."""
    found = _read().get(f'{environment(index)}, kernels {_code()}', {})
    return {key: Verdict(*value) for key, value in found.items()}


def save(index: int, key: str, verdict: Verdict) -> None:
    """Add a verdict to the file atomically; only in a folder that can be written."""
    file = path()
    entries = _read()
    entries.setdefault(f'{environment(index)}, kernels {_code()}', {})[key] = list(verdict)
    try:
        write_json(file, dict(entries, format=FORMAT), indent=1)
    except OSError as error:
        warn_once(f'mmlinattn: verdicts of the kernel check cannot be kept in {file}: {error}')


def _read() -> Dict[str, Any]:
    try:
        entries = json.loads(path().read_text())
        current = entries.pop('format') == FORMAT
        return entries if current else {}
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError, TypeError, AttributeError, KeyError) as error:
        warn_once(f'mmlinattn: {path()} holds no verdicts, the kernels are checked anew: {error}')
        return {}


@contextmanager
def one_process() -> Iterator[None]:
    """Let one process of this machine check at a time; the others wait and read its verdict."""
    file = path()
    lock: Optional[FileLock] = None
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(f'{file}.lock')
        lock.acquire(timeout=LOCK_SECONDS)
    except (OSError, Timeout):  # a folder that cannot be written, or a process that hangs
        lock = None
    try:
        yield
    finally:
        if lock is not None:
            lock.release()
