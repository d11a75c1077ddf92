"""Fixtures that several test folders share."""

import os
from pathlib import Path

os.environ.setdefault('OMP_NUM_THREADS', '1')

import pytest
import torch

if not torch.cuda.is_available():
    # Before anything imports Triton: a forced fused backend then runs in its interpreter.
    os.environ['TRITON_INTERPRET'] = '1'

from safetensors import safe_open
from safetensors.torch import load_file

import mmlinattn  # noqa: F401  registers everything

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT.parent / 'shared' / 'golden'

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(scope='session')
def root() -> Path:
    """The repository."""
    return ROOT


@pytest.fixture(scope='session')
def golden():
    """Loads a file of recorded tensors: golden(name) -> (tensors, metadata)."""

    def load(name: str):
        path = GOLDEN / f'{name}.safetensors'
        if not path.exists():
            pytest.skip(f'{path} is absent: recorded outputs of released code are not shipped')
        with safe_open(path, 'pt') as file:
            metadata = file.metadata()
        return load_file(path), metadata

    return load
