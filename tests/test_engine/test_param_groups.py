import copy
from unittest.mock import Mock

import pytest
import torch
from mmengine.config import ConfigDict
from mmengine.optim import OptimWrapper, OptimWrapperDict, build_optim_wrapper
from torch import nn

from mmlinattn.engine.runner.param_groups import merge_groups_in_steps
from tests.test_engine.tiny_runner import Net, tiny_runner

NET = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 4), nn.LayerNorm(4))
PARAMWISE = dict(norm_decay_mult=0.0, custom_keys={'0': dict(lr_mult=0.5)})


def merged_groups(optimizer):
    """Merge the groups of an optimizer, and return a list that gets their number in each step."""
    merge_groups_in_steps(optimizer)
    seen = []
    optimizer.register_step_pre_hook(lambda o, *_: seen.append(len(o.param_groups)))
    return seen


def wrapper_of(model, **optimizer):
    options = dict(lr=0.1, weight_decay=0.2, **optimizer)
    cfg = ConfigDict(optimizer=options, paramwise_cfg=PARAMWISE)
    return build_optim_wrapper(model, cfg)


def steps(model, wrapper, schedule):
    torch.manual_seed(0)
    for rate in schedule:
        wrapper.update_params(model(torch.randn(5, 3)).square().sum())
        for group in wrapper.param_groups:
            group['lr'] *= rate


@pytest.mark.parametrize(
    'optimizer',
    [
        dict(type='AdamW', betas=[0.8, 0.9]), dict(type='AdamW', foreach=True),
        dict(type='SGD', momentum=0.9), dict(type='RMSprop'),
    ],
)  # fmt: skip
def test_steps_are_the_same_with_fewer_groups(optimizer):
    models = [copy.deepcopy(NET) for _ in range(2)]
    plain, merged = (wrapper_of(model, **optimizer) for model in models)
    seen = merged_groups(merged.optimizer)
    own = merged.optimizer.param_groups
    assert {type(group) for group in own} == {dict}
    for model, wrapper in zip(models, (plain, merged)):
        steps(model, wrapper, [0.5, 1.0, 0.3])
    for a, b in zip(*(model.parameters() for model in models)):
        assert torch.equal(a, b)
    assert seen == [3] * 3 and len(own) == 8
    assert merged.optimizer.param_groups is own
    states = [wrapper.state_dict() for wrapper in (plain, merged)]
    assert states[0]['param_groups'] == states[1]['param_groups']
    found = [sorted(state['state'].items()) for state in states]
    assert str(found[0]) == str(found[1])


def test_groups_with_equal_values_of_other_options_stay_apart():
    a, b = (nn.Parameter(torch.ones(2)) for _ in range(2))
    groups = [
        dict(params=[a], lr=0.5, weight_decay=0.25),
        dict(params=[b], weight_decay=0.5, lr=0.25),
    ]
    optimizer = torch.optim.SGD(groups, 1.0)
    optimizer.add_param_group(dict(params=[nn.Parameter(torch.ones(2))], lr=0.5, weight_decay=0.25))
    for i, group in enumerate(optimizer.param_groups):
        group['param_name'] = str(i)  # of MMPretrain's layer decay
        del group['differentiable']  # which some lack after a resume
    seen = merged_groups(optimizer)
    a.grad = b.grad = torch.zeros(2)
    optimizer.step()
    assert a[0] == 1 - 0.5 * 0.25 and b[0] == 1 - 0.25 * 0.5
    assert seen == [2] and [group['lr'] for group in optimizer.param_groups] == [0.5, 0.25, 0.5]


def test_options_that_are_lists_make_groups_of_their_own():
    net = copy.deepcopy(NET)
    optimizer = torch.optim.Adam([dict(params=[p]) for p in net.parameters()])
    for group in optimizer.param_groups[:2]:
        group['betas'] = [0.8, 0.9]
    seen = merged_groups(optimizer)
    optimizer.step()
    assert seen == [3]


def test_optimizers_of_others_stay_as_they_are():
    class Own(torch.optim.SGD):
        pass

    optimizer = Own(NET.parameters(), 0.1)
    merge_groups_in_steps(optimizer)
    assert not optimizer._optimizer_step_pre_hooks


def test_a_step_that_fails_leaves_the_groups_of_the_next_one():
    net = copy.deepcopy(NET)
    optimizer = wrapper_of(net, type='SGD').optimizer
    merge_groups_in_steps(optimizer)
    merge_groups_in_steps(optimizer)
    own = optimizer.param_groups
    for parameter in net.parameters():
        parameter.grad = torch.zeros_like(parameter)

    def fail():
        handle = optimizer.register_step_pre_hook(Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            optimizer.step()
        handle.remove()

    fail()
    optimizer.step()
    assert optimizer.param_groups is own
    fail()
    optimizer.param_groups = other = [{**group, 'lr': 0.5} for group in own]  # as by a rollback
    optimizer.step()
    assert optimizer.param_groups is other


@pytest.mark.parametrize('fused', [False, True])
def test_late_gradients(fused):
    """Fused SGD takes all parameters of a group to have a momentum, or none."""
    net = copy.deepcopy(NET)
    optimizer = torch.optim.SGD([dict(params=[p]) for p in net.parameters()], 0.1, 0.9, fused=fused)
    merge_groups_in_steps(optimizer)
    first, *rest = net.parameters()
    first.grad = torch.ones_like(first)
    optimizer.step()
    for parameter in rest:
        parameter.grad = torch.ones_like(parameter)
    before = rest[0].detach().clone()
    optimizer.step()
    torch.testing.assert_close(rest[0], before - 0.1)


class Five(Net):
    """A model of five parameters."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(1, 1), nn.Linear(1, 1)

    def forward(self, inputs, mode='tensor'):
        return dict(loss=self.weight * self.a(self.b(inputs.view(-1, 1))).sum())


def test_a_training_keeps_the_groups_in_its_checkpoints(tmp_path):
    """A command prepares the training, and MMEngine builds the optimizer a second time."""

    def runner(**options):
        optimizer = dict(type='SGD', lr=0.125, momentum=0.5)
        keys = dict(custom_keys={'a.': dict(lr_mult=2.0)})
        wrapper = dict(optimizer=optimizer, paramwise_cfg=keys)
        schedule = [dict(type='LinearLR', start_factor=0.5, by_epoch=False, end=4)]
        options.update(optim_wrapper=wrapper, param_scheduler=schedule)
        run = tiny_runner(tmp_path, model=Five(), **options)
        run.prepare_training()
        return run

    first = runner()
    first.train()
    assert len(first.optim_wrapper.optimizer._optimizer_step_pre_hooks) == 1
    path = tmp_path / 'epoch_1.pth'
    groups = torch.load(path, weights_only=False)['optimizer']['param_groups']
    assert [group['params'] for group in groups] == [[i] for i in range(len(groups))]
    assert len(groups) == 5 and len({group['lr'] for group in groups}) == 2
    again = runner(length=2, load_from=str(path), resume=True)
    again.train()
    assert again.epoch == 2


def test_both_of_two_optimizers_merge(tmp_path):
    wrappers = {name: OptimWrapper(torch.optim.SGD(NET.parameters(), 0.1)) for name in 'ab'}
    built = tiny_runner(tmp_path).build_optim_wrapper(OptimWrapperDict(**wrappers))
    assert all(len(w.optimizer._optimizer_step_pre_hooks) == 1 for w in built.values())


def test_compiled_trainings_keep_their_groups(tmp_path):
    runner = tiny_runner(tmp_path, cfg=dict(compile=True))
    wrapper = runner.build_optim_wrapper(dict(optimizer=dict(type='SGD', lr=0.1)))
    assert not wrapper.optimizer._optimizer_step_pre_hooks
