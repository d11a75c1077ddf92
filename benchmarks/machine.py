"""Commit, machine, package versions and errors of a measurement."""

import argparse
import os
import platform
import shlex
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Dict, List

import torch

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ('mmengine', 'mmcv', 'mmcv-lite', 'mmdetection', 'mmdet', 'mmsegmentation', 'mmpretrain')
CHANGED = ', with changes'  # after a commit


def commit() -> str:
    """Return the commit of this checkout, with a note if tracked files but docs/ have changes."""

    def git(*command: str) -> str:
        run = subprocess.run(['git', '-C', ROOT, *command], capture_output=True, text=True)
        return run.stdout.strip()

    try:
        changed = git('status', '--porcelain', '--untracked-files=no', '--', '.', ':!docs')
        return (git('rev-parse', 'HEAD') or 'unknown') + (CHANGED if changed else '')
    except FileNotFoundError:
        return 'unknown'


def machine(device: torch.device) -> str:
    """Return the names of the processor and, if ``device`` is a GPU, of the GPU."""
    cpu = platform.processor() or platform.machine()
    info = Path('/proc/cpuinfo')
    if info.exists():
        names = [line for line in info.read_text().splitlines() if line.startswith('model name')]
        cpu = names[0].split(':', 1)[1].strip() if names else cpu
    text = f'{cpu}, {os.cpu_count()} cores, {platform.system()}'
    return f'{torch.cuda.get_device_name(device)}; {text}' if device.type == 'cuda' else text


def facts(script: str, argv: List[str], device: torch.device) -> Dict[str, object]:
    """Return what is needed to judge and to repeat a measurement.

    Args:
        script: in ``benchmarks/``.
        argv: its arguments.
    """
    return dict(
        command=shlex.join(['python', f'benchmarks/{script}', *argv]),
        commit=commit(),
        machine=machine(device),
        threads=torch.get_num_threads(),
        versions=versions(),
    )


def versions() -> str:
    """Return the versions of Python, torch and OpenMMLab, also of its OneDL packages."""
    found = dict(Python=platform.python_version(), torch=torch.__version__)
    for name in PACKAGES:
        for installed in (f'onedl-{name}', name):
            if version(installed) != 'not installed':
                found[name] = version(installed)
    return ', '.join(f'{name} {number}' for name, number in found.items())


def parse_device(text: str, parser: argparse.ArgumentParser) -> torch.device:
    """Return the device of ``--device`` and make it the current one, or end with one line."""
    try:
        device = torch.device(text)
    except RuntimeError:
        device = None
    if device is None or device.type not in ('cpu', 'cuda'):
        parser.error(f'--device must be cpu, cuda or cuda:N, got {text!r}')
    if device.type == 'cuda' and not torch.cuda.is_available():
        parser.error(f'--device {text}: torch {torch.__version__} finds no CUDA device')
    if device.index is not None and device.type == 'cuda':
        torch.cuda.set_device(device)  # events and streams belong to the current device
    return device


def version(package: str) -> str:
    """Return the version of an installed package, or ``'not installed'``."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return 'not installed'


def error_line(error: Exception) -> str:
    """Return the type and the first line of an error."""
    first = (str(error).strip().splitlines() or [''])[0]
    return f'{type(error).__name__}: {first}'[:300]
