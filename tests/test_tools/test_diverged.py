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


def stop_of(run, capsys, *arguments) -> str:
    """The error line of a command in this process that ends with code 2."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        run(*arguments, debug=False)
    assert stop.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    (line,) = (line for line in lines if line.startswith('error: '))
    return line


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


def test_weights_that_are_not_finite_are_not_used(diverged, root, run, capsys, tmp_path):
    """By no command: test, train, and all that build a model with a checkpoint (predict, ...)."""
    cfg, path, overrides = diverged
    message = f'{path} has 1 weights that are NaN or infinite: decode_head.conv_seg.bias'
    common = (root / CONFIGS['seg'],)
    for arguments in (
        ('test', *common, path, '--work-dir', tmp_path / 'test'),
        ('train', *common, '--resume', path, '--work-dir', tmp_path / 'resume'),
    ):
        line = stop_of(run, capsys, *arguments, '--cfg-options', *overrides)
        assert f'CheckpointError: {message}' in line
    tuned = ('train', *common, '--work-dir', tmp_path / 'tune', '--cfg-options', *overrides)
    assert message in stop_of(run, capsys, *tuned, f'load_from={path}')
    with pytest.raises(CheckpointError, match='decode_head.conv_seg.bias'):
        load_model(cfg, str(path))
