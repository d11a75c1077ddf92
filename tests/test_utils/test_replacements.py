"""What is replaced at run time is listed, all of it, and can be undone."""

import json
import os
import subprocess
import sys

import pytest

CODE = """
import json, os, sys
import mmcv, mmcv.cnn, mmengine, mmengine.runner, torch
from mmengine import fileio
from mmengine.fileio.backends import registry_utils
from mmengine.fileio.handlers.registry_utils import file_handlers
from mmengine.runner import CheckpointLoader

fileio.get_file_backend('a.jpg', enable_singleton=True)  # MMEngine keeps it
TABLES = dict(
    handlers=file_handlers, loaders=CheckpointLoader._schemes, backends=registry_utils.backends,
    prefixes=registry_utils.prefix_to_backends, environment=os.environ,
)

def state():
    found = {(name, key): value for name, table in TABLES.items() for key, value in table.items()}
    found['finders'] = [finder for finder in sys.meta_path if 'StandIn' in str(finder)]
    # A module that must not be imported. Those that were absent are other additions.
    found['hidden'] = [name for name, module in sys.modules.items() if module is None]
    for module in MODULES:
        for name, value in vars(module).items():
            if callable(value):
                found[module.__name__, name] = value
            if isinstance(value, type):
                found.update({(value, key): part for key, part in vars(value).items()})
    found.pop(('backends', 'atomic'), None)  # of this package, and in nobody's place
    return found

NAMES = ('mmengine', 'mmcv', 'torch.serialization', 'torch.hub')
MODULES = [module for name, module in sys.modules.items() if name.startswith(NAMES)]
before = state()

import mmlinattn
from mmlinattn.checkpoints import replace_mmengine_readers
from mmlinattn.datasets.file_backends import RegularFileBackend, register_file_backends
from mmlinattn.utils import list_replacements, undo_replacements

assert type(fileio.get_file_backend('a.jpg', enable_singleton=True)) is RegularFileBackend
replace_mmengine_readers()
replace_mmengine_readers()  # a second time, as commands do
after, entries = state(), [(entry.what, entry.by) for entry in list_replacements()]
changed = [str(key) for key in before.keys() | after.keys() if before.get(key) != after.get(key)]
undo_replacements()
undone = [str(key) for key, value in state().items() if before.get(key) != value]
for name in ('detr_layers', 'deformable_detr_layers'):
    layers = sys.modules.get(f'mmdet.models.layers.transformer.{name}')
    if layers and not layers.MultiheadAttention.__module__.startswith('mmcv.'):
        undone.append(layers.MultiheadAttention.__module__)
left, kept = len(list_replacements()), type(fileio.get_file_backend('a.jpg', enable_singleton=True))
register_file_backends()
again = [entry.what for entry in list_replacements()]
print(json.dumps([changed, entries, undone, left, kept.__name__, again]))
"""


@pytest.mark.slow
def test_the_list_is_complete_and_undone(root, tmp_path):
    env = {name: value for name, value in os.environ.items() if name != 'ORT_DISABLE_TELEMETRY'}
    env.update(PYTHONPATH=str(root), TORCHINDUCTOR_CACHE_DIR=str(tmp_path))
    # An installed package adds its finder when Python starts, which would be before the first look.
    program = (
        "import sys; sys.modules.pop('mmlinattn_mmcv', None)\n"
        "sys.meta_path[:] = [f for f in sys.meta_path if 'StandIn' not in str(f)]\n" + CODE
    )
    done = subprocess.run(
        [sys.executable, '-c', program], env=env, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    changed, entries, undone, left, kept, again = json.loads(done.stdout.splitlines()[-1])
    by = dict(entries)
    # MMDetection cannot be imported before the finder is there.
    decoders = [what for what in by if what.startswith('MultiheadAttention in mmdet.')]
    assert len(by) == len(entries) == len(changed) + len(decoders), (sorted(by), sorted(changed))
    folder = 'mmlinattn.datasets.file_backends'
    assert by["MMEngine's file backend 'local'"] == f'{folder}.local.RegularFileBackend'
    assert by["MMEngine's file backend of s3://"] == f'{folder}.s3.S3FileBackend'
    reader = 'mmlinattn.checkpoints.checkpoint_cache._PlainPickleHandler'
    assert by["MMEngine's reader of .pkl files"] == reader
    assert by['environment variable ORT_DISABLE_TELEMETRY'] == "'1'"
    assert undone == [] and left == 0 and kept == 'LocalBackend'
    assert again == [what for what in by if 'file backend' in what]
