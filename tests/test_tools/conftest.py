"""A small Shapes set, and the command lines run in this process."""

import json
import shutil
from pathlib import Path
from typing import Optional

import pytest
from mmengine.config import Config
from mmengine.logging import MessageHub, MMLogger
from mmengine.visualization import Visualizer

from mmlinattn import __main__ as program
from mmlinattn.datasets import shapes

CONFIGS = {
    'seg': 'configs/quickstart/semantic-fpn_ravlt-nano_shapes.py',
    'det': 'configs/quickstart/mask-rcnn_ravlt-nano_shapes.py',
    'cls': 'configs/quickstart/ravlt-nano_shapes.py',
}
FOLDERS = {'seg': 'ade', 'det': 'coco/', 'cls': 'imagenet'}


@pytest.fixture(scope='session')
def shapes_root(tmp_path_factory) -> Path:
    return shapes.generate(
        tmp_path_factory.mktemp('data') / 'shapes', num_train=16, num_val=4, image_size=64
    )


@pytest.fixture
def options(shapes_root):
    """Overrides of a quick-start config: options(task, iterations or epochs) -> list."""

    def make(task: str, length: int = 1, batch: int = 4, workers: int = 0) -> list:
        root = f'{shapes_root}/{FOLDERS[task]}'
        length_name = 'max_iters' if task == 'seg' else 'max_epochs'
        found = [f'train_cfg.{length_name}={length}', f'train_cfg.val_interval={length}']
        for split in ('train', 'val', 'test'):
            loader = f'{split}_dataloader'
            found += [
                f'{loader}.dataset.data_root={root}',
                f'{loader}.num_workers={workers}',
                f'{loader}.persistent_workers={workers > 0}',
            ]
        found += [f'train_dataloader.batch_size={batch}', 'default_hooks.logger.interval=1']
        return found

    return make


@pytest.fixture
def run(monkeypatch):
    """Runs a command in this process: run('train', config, *arguments).

    Errors come out as exceptions, or with ``debug=False`` as a user sees them.
    """

    def call(name: str, *arguments, debug: bool = True) -> Optional[int]:
        # To lay the config's text out takes longer than to train for a few steps.
        unformatted = property(lambda config: False, lambda config, value: None)
        monkeypatch.setattr(Config, '_format_python_code', unformatted, raising=False)
        # MMEngine keeps these for the life of a process.
        for manager in (MessageHub, MMLogger, Visualizer, *Visualizer.__subclasses__()):
            manager._instance_dict.clear()
        return program.main([name, *map(str, arguments), *['--debug'] * debug])

    return call


@pytest.fixture
def quick(root, run, options, tmp_path):
    """Runs a command on a quick-start config: quick('train', task, *arguments, cfg=[...]).

    The work directory is that of the test unless it is given; ``made`` are arguments of options().
    """

    def call(name: str, task: str, *arguments, cfg=(), **made) -> Optional[int]:
        folder = [] if '--work-dir' in arguments else ['--work-dir', tmp_path]
        changes = ['--cfg-options', *options(task, **made), *cfg]
        return run(name, root / CONFIGS[task], *arguments, *folder, *changes)

    return call


@pytest.fixture(scope='module')
def coco_root(shapes_root, tmp_path_factory) -> Path:
    """The Shapes, called by the first of COCO's names."""
    from mmdet.datasets import CocoDataset

    root = tmp_path_factory.mktemp('data') / 'coco'
    shutil.copytree(shapes_root / 'coco', root)
    for path in (root / 'annotations').glob('*.json'):
        annotations = json.loads(path.read_text())
        names = CocoDataset.METAINFO['classes']
        annotations['categories'] = [dict(id=i + 1, name=name) for i, name in enumerate(names)]
        path.write_text(json.dumps(annotations))
    return root
