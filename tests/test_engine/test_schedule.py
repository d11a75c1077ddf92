"""Schedules are tried before work, and edits of a config hold in a resumed training."""

from contextlib import nullcontext

import pytest
import torch
from mmengine.hooks import Hook
from mmengine.optim import OptimWrapper, OptimWrapperDict, ReduceOnPlateauLR
from torch import nn

from mmlinattn.engine.runner import schedule
from tests.test_engine.tiny_runner import Pair, tiny_runner

LR = 0.5


def runner(folder, schedulers, length, by_epoch=False, optimizer=(), resume=None, batch_size=1):
    """A training of 2 images an epoch."""
    return tiny_runner(
        folder, length, by_epoch, batch_size=batch_size, param_scheduler=schedulers,
        optim_wrapper=dict(optimizer=dict(dict(type='SGD', lr=LR), **dict(optimizer))),
        default_hooks=dict(checkpoint=dict(type='CheckpointHook', interval=1, by_epoch=by_epoch)),
        resume=resume is not None, load_from=resume and str(folder / resume),
    )  # fmt: skip


def lowered(run) -> float:
    run.prepare_training()
    run.train()
    return -run.model.weight.item()


def poly(end, **options):
    return dict(type='PolyLR', power=1.0, end=end, **dict(dict(by_epoch=False), **options))


def poly_rates(end, lr=LR):
    return [lr * (1 - i / (end - 1)) for i in range(end)]


@pytest.fixture
def warnings(monkeypatch):
    found = []
    monkeypatch.setattr(schedule, 'log_warning', found.append)
    return found


@pytest.mark.parametrize(
    'new, optimizer, rates, named',
    [
        (poly(4), {}, poly_rates(4), None),
        (poly(8), {}, poly_rates(8), 'PolyLR.total_iters is 7, was 3'),
        ([], {}, 4 * [LR], 'optimizer.lr is 0.5, was 0.16'),
        (poly(4), dict(lr=0.25), poly_rates(4, 0.25), 'optimizer.initial_lr is 0.25, was 0.5'),
        ([poly(4), dict(type='MultiStepLR', milestones=[1, 3], by_epoch=False, gamma=0.1)], {},
         [rate * 0.1 ** (i > 0) * 0.1 ** (i > 2) for i, rate in enumerate(poly_rates(4))],
         'the steps of MultiStepLR'),
        (dict(type='LinearLR', start_factor=1.0, end_factor=0.4, end=4, by_epoch=False), {},
         [LR * (1 - 0.2 * i) for i in range(4)], 'LinearLR.power is None, was 1.0'),
    ],
)  # fmt: skip
def test_edits_hold_from_the_resumed_iteration_on(tmp_path, warnings, new, optimizer, rates, named):
    assert lowered(runner(tmp_path, poly(4), 4)) == pytest.approx(sum(poly_rates(4)))
    resumed = runner(tmp_path, new, len(rates), optimizer=optimizer, resume='iter_2.pth')
    assert lowered(resumed) == pytest.approx(sum([*poly_rates(4)[:2], *rates[2:]]))
    assert len(warnings) == (named is not None)
    assert named is None or (named in warnings[0] and 'from iteration 2 on' in warnings[0])


def test_other_optimizer_options_hold(tmp_path, warnings):
    lowered(runner(tmp_path, poly(4), 4))
    options = dict(momentum=0.5, dampening=0.5)
    resumed = runner(tmp_path, poly(4), 4, optimizer=options, resume='iter_2.pth')
    lowered(resumed)
    (group,) = resumed.optim_wrapper.param_groups
    assert (group['momentum'], group['dampening']) == (0.5, 0.5)
    assert 'optimizer.dampening is 0.5, was 0; optimizer.momentum is 0.5, was 0.' in warnings[0]


@pytest.mark.parametrize('epoch', [1, 2])
def test_epochs_of_another_length(tmp_path, warnings, epoch):
    by_epoch = poly(4, by_epoch=True, convert_to_iter_based=True)
    first = sum(poly_rates(8)[: 2 * epoch])
    lowered(runner(tmp_path, by_epoch, 4, by_epoch=True))
    last = f'epoch_{epoch}.pth'
    resumed = runner(tmp_path, by_epoch, 4, by_epoch=True, batch_size=2, resume=last)
    assert lowered(resumed) == pytest.approx(first + sum(poly_rates(4)[epoch:]))
    counted, edited = warnings
    assert resumed.iter == 4 and 'PolyLR.total_iters is 3, was 7' in edited
    assert 'An epoch has 1 iterations, in the checkpoint 2: its iteration' in counted
    assert f'iteration {2 * epoch} becomes {epoch}, where epoch {epoch + 1} begins' in counted


def test_a_schedule_by_scores_keeps_its_state(tmp_path, warnings):
    run = runner(tmp_path, [], 4, by_epoch=True)
    run.prepare_training()
    (group,) = run.optim_wrapper.param_groups
    by_score = ReduceOnPlateauLR(run.optim_wrapper, monitor='loss', patience=1, end=4)
    run.param_schedulers = [by_score]
    with schedule.schedule_of_config(run):  # a checkpoint of a training of 3 epochs
        vars(by_score).update(best=0.3, num_bad_epochs=1, patience=5, end=3, _global_step=3)
        group['lr'], run.train_loop._epoch, run.train_loop._iter = LR / 10, 3, 6
    assert (by_score.best, by_score.num_bad_epochs, by_score.end) == (0.3, 1, 4)
    assert by_score.patience == 1 and group['lr'] == LR / 10
    assert 'ReduceOnPlateauLR.patience is 1, was 5. ' in warnings[0]


@pytest.mark.parametrize('by_epoch', [False, True])
def test_a_finished_training_says_that_nothing_is_left(tmp_path, warnings, by_epoch):
    whole = lowered(runner(tmp_path, [], 2, by_epoch=by_epoch))
    name = 'epoch_2.pth' if by_epoch else 'iter_2.pth'
    resumed = runner(tmp_path, [], 2, by_epoch=by_epoch, resume=name)
    assert lowered(resumed) == whole and not warnings[1:]
    assert warnings[0].startswith('Nothing is left to train: ')


@pytest.mark.parametrize(
    'schedule, by_epoch, message',
    [
        (dict(type='LinearLR', start_factor=0, end=2), True, 'start_factor=0, .*division by zero'),
        (dict(type='LinearLR', begin=1, end=1), True, 'end should be larger than begin'),
        (dict(type='LinearLR', start_factor=0.1, end=1), False, 'one step, 0 to 1, and never'),
        (dict(type='MultiStepLR', milestones=8), True, 'milestones=8.*not iterable'),
        (dict(type='LinearLR', end=0.4, convert_to_iter_based=True), True,
         r'end=0.4, .*end should be larger than begin, but got begin=0, end=0'),
        (dict(type='OneCycleLR', eta_max=1.0, total_steps=2, by_epoch=False), False,
         'total_steps=2.* fails after 3 of 4 iterations: Tried to step 4 times'),
        (dict(type='ReduceOnPlateauLR'), True, "monitor is 'loss', but the validation is not conf"),
        (poly(2), False, 'the learning rate is 0 after iteration 1 of 4; make the schedule as'),
        (dict(type='CosineAnnealingLR', T_max=2, eta_min_ratio=0.1, convert_to_iter_based=True),
         False, 'True.* ends after one epoch of the data'),
        (poly(4, by_epoch=True), False, 'counts epochs and never changes a value.*by_epoch=False'),
    ],
)  # fmt: skip
def test_what_fails_later_is_named_before_work(tmp_path, schedule, by_epoch, message):
    run = runner(
        tmp_path, [dict(type='ConstantLR'), schedule] if by_epoch else schedule, 4, by_epoch
    )
    with pytest.raises(
        ValueError, match=rf'^param_scheduler\[{int(by_epoch)}\] \(type=.*{message}'
    ):
        run.prepare_training()


@pytest.mark.parametrize(
    'eta_max, lr_mult, is_scaled, lost',
    [
        (LR, 0.1, False, 'lr_mult or layer_decay_rate'),
        (LR, 1.0, True, '--auto-scale-lr'),
        (LR, 1.0, False, ''),
        ([LR] * 4, 0.1, False, ''),
    ],
)
def test_one_cycle_would_undo_other_options(tmp_path, eta_max, lr_mult, is_scaled, lost):
    """It sets the rates of all groups to ``eta_max``, or of each to one of a list."""
    one_cycle = dict(type='OneCycleLR', eta_max=eta_max, total_steps=4, by_epoch=False)
    schedules = [dict(type='ConstantLR', factor=0.5, end=1, by_epoch=False), one_cycle]
    run = runner(tmp_path, schedules, 4)
    for name in 'ab' if isinstance(eta_max, list) else '':  # of equal options
        run.model.register_parameter(name, nn.Parameter(torch.zeros(1)))
    run.optim_wrapper['paramwise_cfg'] = dict(custom_keys=dict(weight=dict(lr_mult=lr_mult)))
    run.auto_scale_lr = dict(enable=is_scaled, base_batch_size=4)
    refused = pytest.raises(ValueError, match=rf'ler\[1\] .*to eta_max, and {lost} would have no')
    with refused if lost else nullcontext():
        run.prepare_training()


@pytest.mark.parametrize(
    'schedule, by_epoch',
    [
        (None, True),
        (poly(4), False),
        (poly(4, by_epoch=True), True),
        (poly(4, by_epoch=True, convert_to_iter_based=True), False),  # with an end
    ],
)
def test_schedules_that_pass(tmp_path, schedule, by_epoch):
    run = runner(tmp_path, schedule, 4, by_epoch=by_epoch)
    run.prepare_training()
    assert run.optim_wrapper.param_groups[0]['lr'] == LR


def test_rates_that_become_small_at_the_end_pass(tmp_path):
    cosine = dict(type='CosineAnnealingLR', T_max=40000, by_epoch=False)
    run = runner(tmp_path, cosine, 40000)
    run.prepare_training()
    assert run.optim_wrapper.param_groups[0]['lr'] == LR


def test_monitors_without_a_score_are_named_before_work(tmp_path):
    run = runner(tmp_path, [], 1)
    run.register_hook(dict(type='EarlyStoppingHook', monitor='mAP', rule='greater'))
    with pytest.raises(ValueError, match="^EarlyStoppingHook.monitor is 'mAP', but the validation"):
        run.prepare_training()


def test_a_hook_of_the_user_may_monitor_something_else(tmp_path):
    run = runner(tmp_path, [], 1)
    hook = Hook()
    hook.monitor = 'train/loss'
    run.register_hook(hook)
    run.prepare_training()
    assert hook in run.hooks


@pytest.mark.parametrize('batch_size, counts, rate', [(1, 1, 0.25), (1, 3, 0.75), (2, 2, 1.0)])
def test_the_rate_is_scaled_by_the_images_of_a_step(tmp_path, batch_size, counts, rate):
    optim_wrapper = dict(optimizer=dict(type='SGD', lr=1.0), accumulative_counts=counts)
    runner = tiny_runner(
        tmp_path, batch_size=batch_size, optim_wrapper=optim_wrapper,
        auto_scale_lr=dict(enable=True, base_batch_size=4),
    )  # fmt: skip
    runner.train()
    assert runner.optim_wrapper.get_lr()['lr'] == [rate]


def test_the_rate_of_each_of_several_optimizers_is_scaled(tmp_path):
    model = Pair()
    wrapper = OptimWrapperDict(**{
        name: OptimWrapper(torch.optim.SGD([parameter], 1.0), accumulative_counts=counts)
        for name, parameter, counts in zip('ab', model.parameters(), (1, 3))
    })  # fmt: skip
    scale = dict(enable=True, base_batch_size=4)
    tiny_runner(tmp_path, model=model, optim_wrapper=wrapper, auto_scale_lr=scale).train()
    assert wrapper.get_lr() == {'a.lr': [0.25], 'b.lr': [0.75]}
