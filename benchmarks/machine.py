"""What was measured, and on what."""

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent


def commit() -> str:
    """The commit of this checkout, and whether files differ from it."""

    def git(*command: str) -> str:
        run = subprocess.run(['git', '-C', ROOT, *command], capture_output=True, text=True)
        return run.stdout.strip()

    try:
        changed = git('status', '--porcelain', '--untracked-files=no')
        return (git('rev-parse', 'HEAD') or 'unknown') + (', with changes' if changed else '')
    except FileNotFoundError:
        return 'unknown'


def machine(device: torch.device) -> str:
    """Processor and, where ``device`` is one, GPU."""
    cpu = platform.processor() or platform.machine()
    info = Path('/proc/cpuinfo')
    if info.exists():
        names = [line for line in info.read_text().splitlines() if line.startswith('model name')]
        cpu = names[0].split(':', 1)[1].strip() if names else cpu
    text = f'{cpu}, {os.cpu_count()} cores, {platform.system()}'
    return f'{torch.cuda.get_device_name(device)}; {text}' if device.type == 'cuda' else text


def version(package: str) -> str:
    """Of an installed package, or ``'not installed'``."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return 'not installed'


def openmmlab(package: str) -> str:
    """Version of a package of OpenMMLab; OneDL's have names of their own."""
    found = [version(name) for name in (package, f'onedl-{package}')]
    return next((v for v in found if v != 'not installed'), 'not installed')
