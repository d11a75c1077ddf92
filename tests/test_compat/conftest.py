"""The stand-in as a module of its own, and mmcv.ops running on it."""

import importlib
import sys
from types import ModuleType

import pytest

from mmlinattn.compat import mmcv_ext

USERS = ('nms', 'roi_align', 'focal_loss', 'multi_scale_deform_attn')


@pytest.fixture
def on_stand_in(monkeypatch) -> None:
    """mmcv.ops calls the stand-in, also where mmcv is compiled."""
    importlib.import_module('mmcv.ops')
    for name in USERS:  # mmcv.ops.nms is a function as well: ask for the module
        monkeypatch.setattr(sys.modules[f'mmcv.ops.{name}'], 'ext_module', mmcv_ext)


@pytest.fixture(scope='session')
def compiled() -> ModuleType:
    """mmcv's compiled operators."""
    module = importlib.import_module('mmcv._ext')
    if module.__file__.endswith('.py'):
        pytest.skip('mmcv is not compiled here: this is mmcv-lite with the stand-in')
    return module
