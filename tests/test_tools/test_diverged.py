"""Weights that are NaN or infinite are used by no command."""

import pytest
import torch
from mmengine.config import DictAction
from mmengine.registry import MODELS

from mmlinattn.checkpoints import CheckpointError
from mmlinattn.engine import load_model
from mmlinattn.engine.config import load_config

from .conftest import CONFIGS
from .test_interrupted import SEG

pytestmark = pytest.mark.slow


@pytest.fixture
def diverged(root, options, tmp_path):
    """A config of Shapes, and a whole training's checkpoint of it with a weight that is NaN."""
    cfg = load_config(str(root / CONFIGS['seg']))
    overrides = [*options('seg', 1), *SEG]
    pairs = (option.split('=', 1) for option in overrides)
    cfg.merge_from_dict({key: DictAction._parse_iterable(value) for key, value in pairs})
    weights = MODELS.build(cfg.model).state_dict()
    weights['decode_head.conv_seg.bias'][1] = float('nan')
    path = tmp_path / 'nan.pth'
    state = dict(state_dict=weights, meta=dict(iter=1, epoch=0), message_hub={})
    torch.save(state, path)
    return cfg, path, overrides


def test_weights_that_are_not_finite_are_not_used(diverged, root, run, error_of, tmp_path):
    """By no command: test, train, and all that build a model with a checkpoint (predict, ...)."""
    cfg, path, overrides = diverged
    message = f'{path} has 1 weights that are NaN or infinite: decode_head.conv_seg.bias'
    common = (root / CONFIGS['seg'],)
    for arguments in (
        ('test', *common, path, '--work-dir', tmp_path / 'test'),
        ('train', *common, '--resume', path, '--work-dir', tmp_path / 'resume'),
    ):
        error = error_of(run, *arguments, '--cfg-options', *overrides, debug=False)
        assert f'CheckpointError: {message}' in error
    tuned = ('train', *common, '--work-dir', tmp_path / 'tune', '--cfg-options', *overrides)
    assert message in error_of(run, *tuned, f'load_from={path}', debug=False)
    with pytest.raises(CheckpointError, match='decode_head.conv_seg.bias'):
        load_model(cfg, str(path))
