"""Fixtures that several test folders share."""

import copy
import functools
import gc
import importlib
import logging
import os
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Optional

os.environ.setdefault('OMP_NUM_THREADS', '1')
# A damaged header may ask for gigabytes; read when OpenCV is first imported.
os.environ.setdefault('OPENCV_IO_MAX_IMAGE_PIXELS', str(2**24))

import cv2
import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    # Before anything imports Triton: a forced fused backend then runs in its interpreter.
    os.environ['TRITON_INTERPRET'] = '1'

from mmengine.config import Config
from mmengine.config import utils as config_utils
from mmengine.registry import DefaultScope
from safetensors import safe_open
from safetensors.torch import load_file

import mmlinattn  # noqa: F401  registers everything
from mmlinattn.datasets import shapes
from mmlinattn.ops.common import dispatch
from mmlinattn.utils import mmcv_ops
from tests.interpreter import quicken
from tests.programs import Program

# Loggers of the frameworks keep the stream of the test that made them, which is closed later.
logging.raiseExceptions = False

ROOT = Path(__file__).resolve().parent.parent
# Small cases are in the repository; a large one may lie beside it.
GOLDEN = (ROOT / 'tests' / 'golden', ROOT.parent / 'shared' / 'golden')

torch.set_num_threads(1)
if not dispatch.TRITON_PROBLEM and not torch.cuda.is_available():
    quicken()
# Reads the hundred files of MMDetection's index for each `mmdet::` of each config.
config_utils.load = functools.cache(config_utils.load)
# Parses a file, and those it is based on, by way of temporary files each time. Configs of the
# repository and of the frameworks stay as they are.
_parse = Config._file2dict
_CONFIGS = (f'{ROOT / "configs"}{os.sep}', f'{sys.prefix}{os.sep}')


@functools.cache
def _parse_once(filename: str, *options) -> tuple:
    return _parse(filename, *options)


def _parsed(
    filename: str, use_predefined_variables: bool = True, use_environment_variables: bool = True,
    lazy_import: Optional[bool] = None,
) -> tuple:  # fmt: skip
    path = os.path.abspath(filename)
    stays = path.startswith(_CONFIGS) and os.path.isfile(path)
    options = (use_predefined_variables, use_environment_variables, lazy_import)
    return copy.deepcopy((_parse_once if stays else _parse)(path, *options))


Config._file2dict = staticmethod(_parsed)
# A loader that the garbage collector ends cannot tell its workers, and waits this long for each.
torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL = 0.2
# What was imported is never garbage, nor what a long collection has left: without it the next one,
# for which MMEngine asks at each data set, takes a tenth of the time.
gc.freeze()
_LONG_COLLECTION_S = 0.05
_collection = dict(began=0.0)


def _freeze_what_stays(phase: str, info: dict) -> None:
    if phase == 'start':
        _collection['began'] = time.perf_counter()
    elif time.perf_counter() - _collection['began'] > _LONG_COLLECTION_S:
        gc.freeze()


gc.callbacks.append(_freeze_what_stays)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _arguments(monkeypatch):
    """Restore ``sys.argv``, in which a command puts its name."""
    monkeypatch.setattr(sys, 'argv', [*sys.argv])


@pytest.fixture
def error_of(capsys):
    """Runs a command that must end with code 2: error_of(command, *arguments) -> its error."""

    def call(command, *arguments, **options) -> str:
        capsys.readouterr()  # what was printed before
        with pytest.raises(SystemExit, match='^2$'):
            command(*arguments, **options)
        out, err = capsys.readouterr()
        assert err.startswith('error: ') and err.count('\n') == 1, err
        assert 'Traceback' not in out + err and 'error: ' not in out, out
        return err

    return call


@pytest.fixture(autouse=True)
def _no_scope_of_mmengine():
    """Remove the scope that a runner without one has left: heads would not find their losses."""
    scope = DefaultScope.get_current_instance()
    if scope is not None and scope.scope_name == 'mmengine':
        DefaultScope._instance_dict.clear()  # MMEngine offers no other way


@pytest.fixture(autouse=True)
def _end_programs():
    """End the programs that a failed test left: Python waits for them when it ends."""
    yield
    while Program.started:
        program = Program.started.pop()
        if program.process.is_alive():
            program.kill()


@pytest.fixture(scope='session')
def root() -> Path:
    """The repository."""
    return ROOT


@pytest.fixture(scope='session')
def golden():
    """Loads a file of recorded tensors: golden(name) -> (tensors, metadata)."""

    def load(name: str):
        paths = [folder / f'{name}.safetensors' for folder in GOLDEN]
        path = next(filter(Path.exists, paths), None)
        if path is None:
            pytest.skip(f'{name} is too large to ship and absent here: see tests/golden/README.md')
        with safe_open(path, 'pt') as file:
            metadata = file.metadata()
        return load_file(path), metadata

    return load


@pytest.fixture(scope='session')
def compiled() -> ModuleType:
    """mmcv's compiled operators."""
    module = importlib.import_module('mmcv._ext')
    if module.__file__.endswith('.py'):
        pytest.skip('mmcv is not compiled here: this is mmcv-lite with the stand-in')
    return module


@pytest.fixture
def mmcv_runs_on(monkeypatch):
    """Lets mmcv.ops call these operators: mmcv_runs_on(module)."""
    importlib.import_module('mmcv.ops')

    def use(module: ModuleType) -> None:
        # mmcv.ops.nms is a function as well: ask for the module.
        for name in ('nms', 'roi_align', 'focal_loss', 'multi_scale_deform_attn', 'info'):
            monkeypatch.setattr(sys.modules[f'mmcv.ops.{name}'], 'ext_module', module)

    return use


@pytest.fixture
def on_stand_in(mmcv_runs_on) -> None:
    """mmcv.ops calls the stand-in, also where mmcv is compiled."""
    mmcv_runs_on(mmcv_ops)


@pytest.fixture
def panopticapi(monkeypatch) -> None:
    """Stand in for panopticapi, COCO's reader of panoptic maps, where it is not installed."""
    if find_spec('panopticapi') is None:
        package, utils = ModuleType('panopticapi'), ModuleType('panopticapi.utils')
        package.utils = utils
        # COCO's format: a segment's number is R + 256 G + 65536 B of its colour.
        utils.rgb2id = lambda color: color.astype(np.int32) @ [1, 256, 65536]
        monkeypatch.setitem(sys.modules, 'panopticapi', package)
        monkeypatch.setitem(sys.modules, 'panopticapi.utils', utils)


@pytest.fixture(scope='session')
def needs_to_compile():
    """Skips a test on a torch that cannot compile this in one graph: needs_to_compile(what)."""

    def check(what: str) -> None:
        if torch.__version__.startswith('2.4.'):
            pytest.skip(f'torch 2.4 cannot compile {what} in one graph')

    return check


@pytest.fixture(scope='session')
def shapes_root(tmp_path_factory) -> Path:
    """The Shapes data set, with few images."""
    root = tmp_path_factory.mktemp('data') / 'shapes'
    return shapes.generate(root, num_train=4, num_val=4, image_size=64)


@pytest.fixture(scope='module')
def cityscapes(tmp_path_factory):
    """Write two images for training and one for validation, of rectangles and 20 labels."""
    folder, dice = tmp_path_factory.mktemp('cityscapes'), np.random.default_rng(0)
    for split, count in (('train', 2), ('val', 1)):
        for i in range(count):
            cells = dice.integers(0, 256, (16, 32, 3), np.uint8)
            labels = dice.choice([*range(19), 255], (16, 32)).astype(np.uint8)
            for kind, end, content in (
                ('leftImg8bit', 'leftImg8bit', cells),
                ('gtFine', 'gtFine_labelTrainIds', labels),
            ):
                path = folder / kind / split / 'town' / f'town_{i:06}_000019_{end}.png'
                path.parent.mkdir(parents=True, exist_ok=True)
                cv2.imwrite(str(path), content.repeat(64, axis=0).repeat(64, axis=1))
    return folder
