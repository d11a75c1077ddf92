"""Importing the package registers names and changes nothing else in the process."""

import json
import os
import subprocess
import sys

import pytest
from mmengine.config.utils import MODULE2PACKAGE

from mmlinattn.engine.config import load_config

pytestmark = pytest.mark.slow

# The state of everything that other packages own: what each of their modules and classes holds,
# tables of MMEngine, the process. A value is compared by identity, so it is kept alive.
CODE = """
import gc, json, os, sys, types, warnings
import mmcv.ops, mmcv.transforms, mmengine.runner, torch, torch.hub, torch.serialization
from mmengine import fileio
from mmengine.config.utils import MODULE2PACKAGE
from mmengine.fileio.backends import registry_utils
from mmengine.fileio.handlers.registry_utils import file_handlers
from mmengine.fileio.io import backend_instances
from mmengine.logging import MMLogger
from mmengine.registry import Registry
from mmengine.runner import CheckpointLoader
for name in FRAMEWORKS:
    __import__(name)
fileio.get_file_backend('a.jpg', enable_singleton=True)  # MMEngine keeps it
OWNERS = ('mmengine', 'mmcv', 'mmdet', 'mmseg', 'mmpretrain', 'torch', 'torchvision', 'cv2')
# Those that were imported before; what is imported later has no old state.
MODULES = [m for n, m in sorted(sys.modules.items()) if n.partition('.')[0] in OWNERS and m]
KINDS = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType)
REGISTRIES = [x for x in gc.get_objects() if isinstance(x, Registry)]


def state():
    tables = dict(
        backends=registry_utils.backends, prefixes=registry_utils.prefix_to_backends,
        instances=backend_instances, handlers=file_handlers, loaders=CheckpointLoader._schemes,
        packages=MODULE2PACKAGE, environment=os.environ,
    )
    found = {(name, key): value for name, table in tables.items() for key, value in table.items()}
    for module in MODULES:
        for name, value in list(vars(module).items()):
            if isinstance(value, KINDS):
                found[module.__name__, name] = value
            if isinstance(value, type) and value.__module__.partition('.')[0] in OWNERS:
                for key, part in list(vars(value).items()):
                    if isinstance(part, (*KINDS, staticmethod, classmethod, property)):
                        found[f'{value.__module__}.{value.__qualname__}', key] = part
    for registry in REGISTRIES:
        for name, value in registry.module_dict.items():
            found[f'registry {registry.scope}.{registry.name} {id(registry)}', name] = value
    for i, finder in enumerate(sys.meta_path):
        found['finder', i] = finder
    for i, hook in enumerate(sys.path_hooks):
        found['path hook', i] = hook
    for handler in MMLogger.get_current_instance().handlers:
        for i, item in enumerate(handler.filters):
            found['log filter', i] = item
    for i, item in enumerate(warnings.filters):
        found['warning filter', i] = item
    found['torch', ''] = torch.get_num_threads(), torch.get_rng_state().numpy().tobytes()
    found['excepthook', ''], found['path', ''] = sys.excepthook, tuple(sys.path)
    # A name of None in sys.modules keeps the module from being imported.
    found['hidden', ''] = tuple(sorted(n for n, m in sys.modules.items() if m is None))
    return found


def same(a, b):
    return a is b or (isinstance(a, (str, tuple, int)) and a == b)


before = state()
import mmlinattn
after = state()
MISSING = object()
changed = [
    key for key, value in before.items() if not same(value, after.get(key, MISSING))
]
added = [key for key in after if key not in before]
owners = [getattr(after[key], '__module__', None) or type(after[key]).__module__ for key in added]
print(json.dumps(dict(
    changed=[[*map(str, key)] for key in changed], looked_at=len(before),
    added=[[*map(str, key), owner.partition('.')[0]] for key, owner in zip(added, owners)],
)))
"""
FRAMEWORKS = {
    'engine alone': (),
    'all': ('mmdet.apis', 'mmseg.apis', 'mmpretrain.apis'),
}


def look(root, tmp_path, frameworks):
    code = CODE.replace('FRAMEWORKS', repr(frameworks))
    env = {name: value for name, value in os.environ.items() if name != 'ORT_DISABLE_TELEMETRY'}
    env.update(PYTHONPATH=str(root), TORCHINDUCTOR_CACHE_DIR=str(tmp_path))
    done = subprocess.run(
        [sys.executable, '-c', code], env=env, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize('frameworks', FRAMEWORKS)
def test_importing_registers_names_and_changes_nothing_else(root, tmp_path, frameworks):
    """Operators for mmcv-lite are a file that setup.py installs, so nothing is excepted here."""
    found = look(root, tmp_path, FRAMEWORKS[frameworks])
    assert found['looked_at'] > 1000 and found['changed'] == []
    names = []
    for table, name, owner in found['added']:
        if table.startswith('registry') or table in ('backends', 'loaders'):  # for configs
            assert owner == 'mmlinattn' or frameworks != 'all', (table, name)
            names.append(name)
        else:  # packages that are imported now may bring a finder
            assert table == 'finder' and owner != 'mmlinattn', (table, name)
    assert {'RAVLT', 'RALA', 'LinearCrossAttention', 'DINOWithAttention'} <= {*names}


def test_bases_of_mmseg_are_found_while_a_config_is_read(tmp_path):
    """OneDL's distribution has another name than MMEngine looks for."""
    pytest.importorskip('mmseg')
    before = dict(MODULE2PACKAGE)
    config = tmp_path / 'config.py'
    config.write_text("_base_ = 'mmseg::segformer/segformer_mit-b0_8xb2-160k_ade20k-512x512.py'\n")
    assert load_config(str(config)).model.type == 'EncoderDecoder'
    assert before == MODULE2PACKAGE
