import copy

import pytest
import torch
from mmengine.config import ConfigDict
from mmengine.optim import build_optim_wrapper
from torch import nn

from mmlinattn.engine.runner.param_groups import merge_groups_in_steps
from tests.test_engine.tiny_runner import tiny_runner

NET = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 4), nn.LayerNorm(4))
PARAMWISE = dict(norm_decay_mult=0.0, custom_keys={'0': dict(lr_mult=0.5)})


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
    merge_groups_in_steps(merged.optimizer)
    own, seen = merged.optimizer.param_groups, []
    assert {type(group) for group in own} == {dict}
    merged.optimizer.register_step_pre_hook(lambda o, *_: seen.append(len(o.param_groups)))
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
    merge_groups_in_steps(optimizer)
    seen = []
    optimizer.register_step_pre_hook(lambda o, *_: seen.append(len(o.param_groups)))
    a.grad = b.grad = torch.zeros(2)
    optimizer.step()
    assert a[0] == 1 - 0.5 * 0.25 and b[0] == 1 - 0.25 * 0.5
    assert seen == [2] and [group['lr'] for group in optimizer.param_groups] == [0.5, 0.25, 0.5]


def test_optimizers_of_others_stay_as_they_are():
    class Own(torch.optim.SGD):
        pass

    optimizer = Own(NET.parameters(), 0.1)
    merge_groups_in_steps(optimizer)
    assert not optimizer._optimizer_step_pre_hooks


def test_a_training_merges(tmp_path):
    runner = tiny_runner(tmp_path)
    wrapper = runner.build_optim_wrapper(dict(optimizer=dict(type='SGD', lr=0.1)))
    assert len(wrapper.optimizer._optimizer_step_pre_hooks) == 1
