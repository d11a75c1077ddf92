"""A damaged config is refused in words, or trains."""

import io
import random
import warnings
from contextlib import redirect_stderr

import pytest
from mmengine.config import Config
from mmengine.logging import MessageHub, MMLogger
from mmengine.registry import init_default_scope
from mmengine.visualization import Visualizer

from mmlinattn.datasets import shapes
from mmlinattn.engine import config
from mmlinattn.engine.preflight import data as data_checks
from mmlinattn.engine.preflight.weights import check_weights
from mmlinattn.engine.runner.runner import PluginRunner
from mmlinattn.engine.training_setup import set_up_training
from mmlinattn.utils.command_line import errors_in_one_line
from tests.families import shrunk
from tests.test_faults.damage import damaged_tree, seeds, try_all

pytestmark = pytest.mark.long
BASES = ('ravlt-nano-semantic-fpn', 'ravlt-nano-cls', 'segformer-rwgka', 'ravlt-retinanet', 'smca')
# What is read before training; the rest MMEngine reads while it trains.
PARTS = (
    'model', 'train_dataloader', 'train_cfg', 'optim_wrapper', 'param_scheduler', 'default_hooks',
    'default_scope', 'custom_imports', 'val_dataloader', 'val_evaluator', 'val_cfg', 'env_cfg',
    'custom_hooks',
)  # fmt: skip


@pytest.fixture(scope='module')
def trees(tmp_path_factory):
    folder = tmp_path_factory.mktemp('data') / 'shapes'
    root = shapes.generate(folder, num_train=2, num_val=1, image_size=64)
    found = []
    for family in BASES:
        whole = shrunk(family, root).to_dict()
        found.append({key: whole[key] for key in PARTS if key in whole})
    return found


def prepare(tree, work_dir):
    """As tools/train.py: all that comes before training."""
    cfg = Config(dict(tree, work_dir=str(work_dir), log_level='ERROR'))
    config.check_structure(cfg)
    init_default_scope(cfg.get('default_scope', 'mmengine'))
    set_up_training(cfg, resume=None, amp=False)
    data_checks.check_data(cfg, 'train_dataloader', 'val_dataloader', 'val_evaluator')
    runner = PluginRunner.from_cfg(cfg)
    check_weights(runner, cfg)
    runner.prepare_training()


def test_any_leaf(trees, tmp_path, monkeypatch):
    # To lay the config's text out takes most of the time.
    unformatted = property(lambda config: False, lambda config, value: None)
    monkeypatch.setattr(Config, '_format_python_code', unformatted, raising=False)

    def case(seed):
        dice = random.Random(seed)
        tree, what = damaged_tree(dice.choice(trees), dice)
        for manager in (MessageHub, MMLogger, Visualizer, *Visualizer.__subclasses__()):
            manager._instance_dict.clear()
        try:
            said = io.StringIO()
            with warnings.catch_warnings(), redirect_stderr(said), errors_in_one_line(debug=False):
                warnings.simplefilter('ignore')
                prepare(tree, tmp_path)
        except SystemExit as stopped:
            said = said.getvalue().strip().splitlines()[-1]
            assert stopped.code == 2 and said.startswith('error: '), f'{what}: {said}'
            assert 'no message' not in said, f'{what}: {said}'
            return 'refused'
        return 'would train'

    try_all(case, seeds(short=8))
