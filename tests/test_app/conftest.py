"""Predictors with random weights."""

import pytest
import torch
from mmengine.registry import MODELS

from mmlinattn.app import load_models
from mmlinattn.datasets.shapes import CLASSES
from mmlinattn.engine.config import load_config
from tests.test_tools.conftest import CONFIGS

FILES = dict(
    CONFIGS,
    smca='configs/smca/smca-ripple_nano_shapes.py',
    vqgan='configs/vqgan/vit-vqgan-nano_shapes.py',
)


@pytest.fixture(scope='session')
def files(root, tmp_path_factory):
    """files(name) -> config and checkpoint of one of ``FILES``."""
    folder = tmp_path_factory.mktemp('weights')

    def make(name):
        config, checkpoint = str(root / FILES[name]), folder / f'{name}.pth'
        if not checkpoint.exists():
            torch.manual_seed(0)
            model = MODELS.build(load_config(config).model)
            model.init_weights()
            meta = dict(dataset_meta=dict(classes=CLASSES)) if name == 'cls' else {}
            torch.save(dict(state_dict=model.state_dict(), meta=meta), checkpoint)
        return config, str(checkpoint)

    return make


@pytest.fixture(scope='session')
def predictor(files):
    """predictor(name), as :func:`files`."""
    made = {}

    def make(name):
        if name not in made:
            (made[name],) = load_models([files(name)]).values()
        return made[name]

    return make
