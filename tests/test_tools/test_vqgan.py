"""The command that compares attentions in ViT-VQGAN."""

import importlib.util
import sys

import pytest

from mmlinattn.engine import build_model
from mmlinattn.engine.config import load_config


@pytest.fixture
def tool(root, monkeypatch):
    monkeypatch.setattr(sys, 'path', [str(root / 'tools/misc'), *sys.path])
    spec = importlib.util.spec_from_file_location('vqgan', root / 'tools/misc/vqgan.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_make_vqgan_trains_what_is_not_done(tool, root, tmp_path):
    todo = tool.commands(tmp_path, ['shapes', 'camvid'], 200)
    assert len(todo) == 1 + 2 * 4 and all(
        (root / command[1]).is_file() for command in todo.values()
    )
    done = tmp_path / 'shapes_RWGKA/iter_200.pth'
    done.parent.mkdir()
    done.touch()
    assert {*todo} - {*tool.commands(tmp_path, ['shapes', 'camvid'], 200)} == {'shapes, RWGKA'}
    for attention, cfg in tool.ATTENTIONS.items():
        config = load_config(str(root / tool.config_of('camvid')), tool.options_of(attention))
        model = build_model(config)
        kinds = {type(m).__name__ for m in model.modules() if hasattr(m, 'in_proj')}
        assert kinds == {cfg['type']}
    scores = dict(psnr=20.25, ssim=0.5, frechet_distance=3, code_usage=50, perplexity=9)
    text = tool.table(dict(shapes=dict(softmax=scores)))
    assert '| shapes | softmax | 20.2 | 0.500 | 3.0 | 50.0 | 9.0 |' in text
