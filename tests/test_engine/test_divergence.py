"""Trainings that diverge: what ends them, and what does not."""

import math
from types import SimpleNamespace

import pytest
import torch
from mmengine.config import Config
from mmengine.logging import MessageHub
from torch import nn

from mmlinattn.checkpoints import CheckpointError, check_fits, non_finite, save_checkpoint
from mmlinattn.engine import CPUAmpOptimWrapper, DivergenceHook
from mmlinattn.engine.hooks.divergence_hook import TrainingDiverged

NAN, INF = math.nan, math.inf


def train(hook: DivergenceHook, losses, wrapper=None, step=lambda i: None) -> int:
    """Run the hook over iterations with these losses, and return how many there were."""
    runner = SimpleNamespace(
        cfg=Config(), message_hub=MessageHub(f'{id(losses)}'), optim_wrapper=wrapper, iter=0
    )
    hook.before_train(runner)
    for runner.iter, loss in enumerate(losses):
        step(runner.iter)
        runner.message_hub.update_scalar('train/loss', loss)
        # Of what the model gives only the name is looked at: its value may be on a GPU.
        hook.after_train_iter(runner, runner.iter, outputs=dict(loss=None))
    return runner.iter + 1


@pytest.mark.parametrize('bad', [NAN, INF, -INF])
def test_losses_that_stay_non_finite(bad):
    with pytest.raises(
        TrainingDiverged, match=r'^iteration 6: no finite loss since iteration 3 \('
    ):
        train(DivergenceHook(patience=3), [1.0, 1.0, *[bad] * 10])


def test_a_few_non_finite_losses_are_passed_over():
    assert train(DivergenceHook(patience=3), [NAN, INF, 1.0] * 10) == 30
    assert train(DivergenceHook(), [NAN] * 9 + [1.0] * 3) == 12


@pytest.mark.parametrize('finite_from, ends', [(12, False), (10**6, True)])
def test_a_loss_scale_that_collapses(finite_from, ends):
    """The first steps may overflow; a scale that halves for ever ends the training."""
    model = nn.Linear(1, 1)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapper = CPUAmpOptimWrapper('float16', optimizer=sgd)

    def step(i: int) -> None:
        factor = 1.0 if i >= finite_from else INF
        wrapper.update_params(model(torch.ones(1, 1)).sum() * factor)

    hook = DivergenceHook()
    if ends:
        with pytest.raises(TrainingDiverged, match='iteration 100: the loss scale has fallen'):
            train(hook, [1.0] * 200, wrapper, step)
    else:
        assert train(hook, [1.0] * 200, wrapper, step) == 200
        assert wrapper.loss_scaler.get_scale() == 2.0**4
    assert all(p.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize('options', [dict(patience=0), dict(patience=1.5), dict(min_loss_scale=-1)])
def test_options(options):
    with pytest.raises(ValueError, match=f'DivergenceHook.{next(iter(options))} must'):
        DivergenceHook(**options)


def model_with_mask() -> nn.Module:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    model.register_buffer('mask', torch.full((2, 2), -INF).triu(1))
    return model


@pytest.mark.parametrize(
    'name, value, refused',
    [
        ('0.weight', NAN, True),
        ('0.weight', INF, True),
        ('0.bias', -INF, True),
        ('1.running_var', INF, True),
        ('mask', NAN, True),
        ('mask', INF, False),  # a mask of -inf is meant
        ('0.weight', 3e38, False),
    ],
)
@pytest.mark.parametrize('suffix', ['pth', 'safetensors'])
def test_weights_that_cannot_be_used(tmp_path, name, value, refused, suffix):
    weights = {k: v.clone() for k, v in model_with_mask().state_dict().items()}
    weights[name].view(-1)[1] = value
    path = tmp_path / f'a.{suffix}'
    save_checkpoint(path, weights, {})
    if refused:
        with pytest.raises(
            CheckpointError, match=f'has 1 weights that are NaN or infinite: {name}'
        ):
            check_fits(path, model_with_mask())
    else:
        assert check_fits(path, model_with_mask()).matched


def test_weights_that_are_not_loaded_may_be_anything(tmp_path):
    weights = dict(model_with_mask().state_dict(), other=torch.tensor([NAN]))
    save_checkpoint(tmp_path / 'a.pth', weights, {})
    assert check_fits(tmp_path / 'a.pth', model_with_mask()).unexpected == ['other']


def test_all_kinds_of_tensors():
    weights = dict(
        half=torch.tensor([65504.0], dtype=torch.float16), bad=torch.tensor([NAN]).bfloat16(),
        eight=torch.tensor([1.0]).to(torch.float8_e4m3fn), whole=torch.tensor([1]),
        empty=torch.empty(0), meta=torch.empty(3, device='meta'), text='a',
    )  # fmt: skip
    assert non_finite(weights) == ['bad']
