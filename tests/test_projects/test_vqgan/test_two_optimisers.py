"""Training with two optimisers: through the runner, resumed, averaged, on two processes."""

import re

import pytest
import torch
from mmengine.config import ConfigDict
from mmengine.hooks import Hook
from mmengine.optim import build_optim_wrapper
from torch import nn

from mmlinattn.checkpoints import read_checkpoint
from mmlinattn.engine.config import load_config
from mmlinattn.engine.preflight.weights import check_weights
from mmlinattn.engine.runner.runner import PluginRunner
from tests.programs import run_two


@pytest.fixture
def runner_of(root, shapes_root, tmp_path):
    """runner_of(folder, iterations, **options): a training of the nano config at tiny size."""

    images = f'{shapes_root}/imagenet'

    def make(folder: str, iterations: int = 4, **options) -> PluginRunner:
        given = {
            'model.backbone.arch': dict(embed_dims=32, num_heads=2, depth=1, patch_size=16),
            'model.backbone.attn_cfg': dict(type='RWGKA', num_anchors=4),
            'model.quantizer.num_codes': 16,
            'model.discriminator.base_channels': 4,
            'model.discriminator.max_channels': 8,
            'train_dataloader.batch_size': 2,
            'train_cfg.max_iters': iterations,
            'train_cfg.val_interval': 2,
            'param_scheduler.0.total_steps': 4,
            'default_hooks.logger.interval': 1,
            'default_hooks.checkpoint.interval': 2,
            'experiment_name': f'{tmp_path.name}-{folder}-{iterations}',
            'work_dir': str(tmp_path / folder),
            **{f'{s}_dataloader.dataset.data_root': images for s in ('train', 'val', 'test')},
            **options,
        }
        cfg = load_config(str(root / 'configs/vqgan/vit-vqgan-nano_shapes.py'), given)
        cfg.custom_hooks = [dict(type='ExactResumeHook'), dict(type='EMAHook', momentum=0.5)]
        return PluginRunner.from_cfg(cfg)

    return make


class Recorder(Hook):
    priority = 'VERY_LOW'

    def __init__(self) -> None:
        self.logged = []

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None) -> None:
        self.logged.append({name: float(value) for name, value in outputs.items()})


def test_a_training_and_its_test(runner_of, tmp_path):
    runner, recorder = runner_of('a'), Recorder()
    runner.register_hook(recorder)
    runner.train()
    assert len(recorder.logged) == 4
    for name in ('loss_vq', 'loss_l2', 'loss_logit_laplace', 'loss_adversarial'):
        assert name in recorder.logged[0]
    log = next((tmp_path / 'a').glob('*/*.log')).read_text()
    for part in ('model.perceptual is None', 'loss_discriminator', 'discriminator.lr'):
        assert part in log
    scores = re.findall(r'reconstruction/psnr: ([\d.]+)  reconstruction/ssim: ', log)
    assert len(scores) == 2
    found = runner_of('test', load_from=str(tmp_path / 'a/iter_4.pth')).test()
    assert found['reconstruction/psnr'] == pytest.approx(float(scores[-1]), abs=1e-3)
    assert 0 < found['reconstruction/code_usage'] <= 100


def test_a_resumed_training_ends_with_the_same_weights_optimisers_and_average(runner_of, tmp_path):
    runner_of('whole').train()
    first = str(tmp_path / 'whole/iter_2.pth')
    runner_of('part', load_from=first, resume=True).train()
    whole, part = (
        torch.load(tmp_path / name / 'iter_4.pth', weights_only=False) for name in ('whole', 'part')
    )
    for section in ('state_dict', 'ema_state_dict'):
        assert whole[section].keys() == part[section].keys()
        for name, value in whole[section].items():
            assert value.equal(part[section][name]), (section, name)
    # EMAHook saves the average as the weights, and the weights as the average.
    name = 'quantizer.codebook'
    assert not whole['state_dict'][name].equal(whole['ema_state_dict'][f'module.{name}'])
    assert [*whole['optimizer']] == ['generator', 'discriminator']
    for name, wanted in whole['optimizer'].items():
        found = part['optimizer'][name]
        assert [g['lr'] for g in wanted['param_groups']] == [g['lr'] for g in found['param_groups']]
        for number, state in wanted['state'].items():
            assert all(torch.equal(v, found['state'][number][k]) for k, v in state.items())
    assert read_checkpoint(tmp_path / 'part/iter_4.pth')['state_dict']


def test_a_codebook_of_another_size_ends_before_training(runner_of, tmp_path):
    runner_of('a', 2).train()
    path = str(tmp_path / 'a/iter_2.pth')
    other = {'model.quantizer.num_codes': 32}
    runner = runner_of('b', load_from=path, **other)
    with pytest.raises(ValueError, match='has 16 codes of 8 dimensions, the model 32 of 8'):
        check_weights(runner, runner.cfg)


def test_missing_weights_of_vgg_end_a_training_at_its_start(runner_of):
    perceptual = dict(_delete_=True, type='VGGPerceptualLoss', weights='none/vgg16.pth')
    runner = runner_of('a', **{'model.perceptual': perceptual})
    with pytest.raises(FileNotFoundError, match="model.perceptual.weights: 'none/vgg16.pth'"):
        runner.train()


def test_two_processes_equal_one_with_the_doubled_batch(root, tmp_path):
    script, found = root / 'tests/test_projects/test_vqgan/train_alternating.py', tmp_path / 'found'
    run_two(script, [found], tmp_path, root)
    assert found.read_text() == 'equal'


def test_one_config_makes_both_optimisers():
    model = nn.Module()
    model.body, model.discriminator = nn.Linear(2, 3), nn.Linear(3, 1)
    model.temperature = nn.Parameter(torch.ones(2, 2))
    cfg = ConfigDict(
        type='OptimWrapper', constructor='GeneratorDiscriminatorConstructor',
        optimizer=dict(type='AdamW', lr=0.1, weight_decay=0.2),
        paramwise_cfg=dict(bias_decay_mult=0, custom_keys={'discriminator': dict(lr_mult=2)}),
    )  # fmt: skip
    wrappers = build_optim_wrapper(model, cfg)
    ours = {id(p) for p in model.parameters()}  # MMEngine adds a group without parameters of ours
    found = {
        name: {
            id(p): (g['lr'], g['weight_decay'])
            for g in groups
            for p in g['params']
            if id(p) in ours
        }
        for name, groups in wrappers.param_groups.items()
    }
    body, discriminator = model.body, model.discriminator
    assert found['generator'] == {
        id(body.weight): (0.1, 0.2), id(body.bias): (0.1, 0), id(model.temperature): (0.1, 0.2),
    }  # fmt: skip
    assert found['discriminator'][id(discriminator.weight)] == (0.2, 0.2)
    assert len(found['discriminator']) == 2
    with pytest.raises(ValueError, match='needs a model with a discriminator, Linear has none'):
        build_optim_wrapper(nn.Linear(2, 2), cfg)
