"""The checkpoint that a backbone starts from: who makes it, and what another one leaves fresh."""

from types import SimpleNamespace

import pytest
import torch
from mmengine.registry import MODELS, DefaultScope

from mmlinattn.checkpoints import save_checkpoint
from mmlinattn.engine.config import load_config
from mmlinattn.engine.config_files import pretraining_config
from mmlinattn.engine.preflight import weights

NAME = 'segformer_mit-b0-rwgka_8xb1-160k_cityscapes-1024x1024'


@pytest.fixture(autouse=True)
def mmseg():
    with DefaultScope.overwrite_default_scope('mmseg'):
        yield


def check(cfg, model):
    weights.check_weights(SimpleNamespace(model=model), cfg)


@pytest.mark.parametrize('name', ['none.pth', 'checkpoints/mit-b9_in1k.pth', 'https://x.org/a_b'])
def test_files_that_no_config_makes(name):
    assert pretraining_config(name) is None


def test_softmax_weights_by_option_leave_the_anchors_fresh(tmp_path, monkeypatch):
    softmax = MODELS.build(load_config('segformer_mit-b0_camvid').model.backbone)
    softmax.init_weights()
    trained = {key: torch.randn_like(value) for key, value in softmax.state_dict().items()}
    path = tmp_path / 'mit-b0_in1k.pth'
    save_checkpoint(path, {f'backbone.{key}': value for key, value in trained.items()}, {})

    cfg = load_config(NAME)
    cfg.merge_from_dict({'model.backbone.init_cfg.checkpoint': str(path)})
    model, said = MODELS.build(cfg.model), []
    monkeypatch.setattr(weights, 'print_log', lambda text, *_: said.append(text))
    check(cfg, model)
    model.init_weights()

    loaded = model.backbone.state_dict()
    fresh = {key for key in loaded if key not in trained}
    assert fresh == {f'stages.{i}.{j}.attn.anchors_q' for i in range(4) for j in range(2)}
    for key, value in loaded.items():
        if key in fresh:
            assert value.std() > 0 and value.abs().max() < 1
        else:
            assert torch.equal(value, trained[key]), key
    line = next(x for x in said[0].splitlines() if 'missing' in x)
    assert said[0].startswith('backbone.init_cfg: ')
    assert line.startswith('8 missing in the file: stages.0.0.attn.anchors_q, ')
    assert 'unexpected' in said[0] and 'attn.sr.weight' in said[0]


def test_a_resumed_training_needs_no_initial_weights(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # without the file of init_cfg
    cfg = load_config(NAME)
    trained = MODELS.build(cfg.model)
    path = tmp_path / 'iter_1.pth'
    save_checkpoint(path, trained.state_dict(), {})
    cfg.merge_from_dict(dict(resume=True, load_from=str(path)))
    model = MODELS.build(cfg.model)
    check(cfg, model)
    model.init_weights()
    cfg.merge_from_dict(dict(load_from=None))  # --resume before the first checkpoint
    with pytest.raises(FileNotFoundError, match='mit-b0-rwgka_in1k.pth'):
        check(cfg, MODELS.build(cfg.model))


def test_an_init_cfg_without_its_checkpoint():
    cfg = load_config(NAME)
    cfg.model.backbone.init_cfg = dict(type='Pretrained')
    wrong = "model.backbone.init_cfg has type='Pretrained', which needs checkpoint=FILE$"
    with pytest.raises(ValueError, match=wrong):
        check(cfg, MODELS.build(cfg.model))
