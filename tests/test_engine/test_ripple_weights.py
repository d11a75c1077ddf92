"""What is logged of the ring weights of ripple attention, and that the training does not notice."""

import copy
import json
from types import SimpleNamespace

import pytest
import torch
from mmengine.hooks import Hook
from mmengine.logging import MessageHub
from torch import nn

from mmlinattn.engine import RippleWeightsHook
from mmlinattn.engine.hooks import ripple_weights_hook as hook_module
from mmlinattn.models.backbones import ViT
from mmlinattn.models.layers import RippleAttention
from mmlinattn.models.layers.attend_calls import watch_attend
from mmlinattn.projects.video import ClipRippleAttention
from mmlinattn.utils.errors import InputError
from tests.test_configs import built
from tests.test_engine.ripple_net import LOGGED, RippleNet, definition
from tests.test_engine.tiny_runner import tiny_runner

NAMES = {f'ripple/{m}/{n}' for m in ('js_fixed', 'js_uniform', 'entropy') for n in LOGGED}


class Recorder(Hook):
    """Keeps model and batch of each iteration, and whether the hook watches then."""

    priority = 'LOWEST'  # after the other hook has begun

    def __init__(self) -> None:
        self.models, self.batches, self.watched = [], [], []

    def before_train_iter(self, runner, batch_idx, data_batch=None) -> None:
        watched = ['attend' in vars(runner.model.get_submodule(name)) for name in LOGGED]
        assert len({*watched}) == 1 and 'attend' not in vars(runner.model.fixed)
        self.watched.append(watched[0])
        plain = RippleNet()
        plain.load_state_dict(copy.deepcopy(runner.model.state_dict()))
        self.models.append(plain)
        self.batches.append(data_batch['inputs'].clone())

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None) -> None:
        assert 'attend' not in vars(runner.model.first)


def runner_of(folder, hooks, report=None):
    torch.manual_seed(0)
    return tiny_runner(
        folder, 2, dataset=[dict(inputs=torch.randn(13, 8)) for _ in range(6)], batch_size=2,
        model=RippleNet(), custom_hooks=hooks, randomness=dict(seed=0),
        default_hooks=dict(
            logger=dict(type='LoggerHook', interval=1),
            checkpoint=dict(type='AtomicCheckpointHook', interval=1),
            report=report,
        ),
    )  # fmt: skip


def lines(folder) -> list:
    found = [json.loads(x) for path in folder.glob('*/vis_data/scalars.json') for x in path.open()]
    return [line for line in found if any(name.startswith('ripple/') for name in line)]


def test_numbers_are_those_of_the_definition(tmp_path):
    recorder = Recorder()
    hooks = [dict(type='RippleWeightsHook', interval=4), recorder]
    runner = runner_of(tmp_path, hooks, report=dict(type='ReportHook'))
    runner.train()
    found = lines(tmp_path)
    assert [line['step'] for line in found] == [1, 4]
    assert recorder.watched == [True, False, False, True, False, False]
    history = runner.message_hub.log_scalars
    for i, line in zip((0, 3), found):
        expected = definition(recorder.models[i], recorder.batches[i])
        assert expected.keys() == NAMES == line.keys() - {'step', 'iter'}
        assert {name: line[name] for name in NAMES} == pytest.approx(expected, abs=1e-5)
    for name in NAMES:
        assert [line[name] for line in found] == pytest.approx(history[name].data[0].tolist())
    assert found[0] != found[1]
    # Not in the line of the losses on the console, nor among the scores of the report.
    assert 'ripple/' not in next(tmp_path.glob('*/*.log')).read_text()
    assert (tmp_path / 'report' / 'ring_weights.png').exists()


def trained(folder, hooks) -> dict:
    runner = runner_of(folder, hooks)
    runner.train()
    return runner.model.state_dict()


def test_a_training_has_the_same_bits_without_the_hook(tmp_path):
    plain = trained(tmp_path / 'plain', [])
    logged = trained(tmp_path / 'logged', [dict(type='RippleWeightsHook', interval=1)])
    assert all(value.equal(logged[name]) for name, value in plain.items())
    assert len(lines(tmp_path / 'logged')) == 6 and not lines(tmp_path / 'plain')


def logged_of(model: nn.Module, run) -> dict:
    """What the hook logs of ``run()``, an iteration."""
    logged: dict = {}
    runner = SimpleNamespace(
        model=model, iter=0, message_hub=MessageHub('none'),
        visualizer=SimpleNamespace(add_scalars=lambda values, step: logged.update(values)),
    )  # fmt: skip
    hook = RippleWeightsHook()
    hook.before_train(runner)
    hook.before_train_iter(runner, 0)
    run()
    hook.after_train_iter(runner, 0)
    return logged


def test_the_mean_is_over_all_processes(monkeypatch):
    """The second of two processes has one image more, and other padding."""
    torch.manual_seed(0)
    model, batches = RippleNet(), (torch.randn(2, 13, 8), torch.randn(3, 13, 8))
    wrapped, sent = nn.DataParallel(model), []
    monkeypatch.setattr(hook_module, 'all_reduce', lambda totals: sent.append(totals.clone()))
    logged_of(wrapped, lambda: model(batches[1]))
    monkeypatch.setattr(hook_module, 'all_reduce', lambda totals: totals.add_(sent[0]))
    logged = logged_of(wrapped, lambda: model(batches[0]))
    assert logged.pop('iter') == 1
    assert logged == pytest.approx(definition(model, torch.cat(batches)), abs=1e-5)


def vit(**options) -> ViT:
    torch.manual_seed(0)
    arch = dict(embed_dims=16, num_heads=2, depth=3, patch_size=4)
    model = ViT(arch, ['RippleAttention'] * 2 + ['LinearAttention'], img_size=16, **options)
    for layer in model.layers[:2]:
        nn.init.normal_(layer.attn.units)
    return model


def test_ways_to_run_a_layer():
    images = torch.randn(3, 3, 16, 16)
    model = vit()
    wanted = logged_of(model, lambda: model(images))
    assert [name for name in wanted if 'entropy' in name] == [
        'ripple/entropy/layers.0.attn', 'ripple/entropy/layers.1.attn',
    ]  # fmt: skip
    packed = logged_of(model, lambda: model(list(images)))
    assert packed == pytest.approx(wanted, abs=1e-5)
    again = vit(with_cp=True)
    assert logged_of(again, lambda: again(images)[0].sum().backward()) == pytest.approx(wanted)
    with torch.autocast('cpu', torch.bfloat16):
        half = logged_of(model, lambda: model(images))
    assert half == pytest.approx(wanted, rel=0.1) and half != wanted
    # Frames of a clip are counted as images are, where the weights come from the values alone.
    model = nn.ModuleList([ClipRippleAttention(8, 2, 3)])
    clip = torch.randn(1, 24, 8)
    maps = clip.view(2, 12, 8)
    assert logged_of(model, lambda: model[0](clip, (2, 3, 4))) == pytest.approx(
        logged_of(model, lambda: model[0](maps, (3, 4)))
    )


@pytest.mark.parametrize('watched', [False, True])
def test_gradients_under_autocast(watched):
    """Autocast keeps casts of parameters: those made without gradient would serve the layer."""
    torch.manual_seed(0)
    model, images = vit().train(), torch.randn(2, 3, 16, 16)

    def run():
        with torch.autocast('cpu', torch.bfloat16):
            (out,) = model(images)
        out.float().square().sum().backward()

    if watched:
        logged_of(model, run)
    else:
        run()
    names = [name for name, value in model.named_parameters() if value.grad is None]
    assert names == [] and any('weight_proj' in name for name, _ in model.named_parameters())


def test_two_watchers_of_one_layer():
    attn, seen = RippleAttention(8, 2, max_distance=2), []
    with watch_attend(attn, lambda call: seen.append('outer')):
        with watch_attend(attn, lambda call: seen.append('inner')):
            attn(torch.randn(1, 6, 8), (2, 3))
        attn(torch.randn(1, 6, 8), (2, 3))
    attn(torch.randn(1, 6, 8), (2, 3))
    assert seen == ['inner', 'outer', 'outer'] and 'attend' not in vars(attn)


def test_layers_of_smca():
    hook = RippleWeightsHook()
    hook.before_train(SimpleNamespace(model=built('smca-ripple_nano_shapes')))
    assert hook.layers and all(name.startswith('encoder.layers.') for name in hook.layers)


@pytest.mark.parametrize(
    'attn_cfg', ['SoftmaxAttention', dict(type='RippleAttention', weights='fixed')]
)
def test_a_model_without_learnt_rings(attn_cfg):
    arch = dict(embed_dims=16, num_heads=2, depth=1, patch_size=4)
    runner = SimpleNamespace(model=ViT(arch, attn_cfg, img_size=16))
    with pytest.raises(InputError, match='^RippleWeightsHook: ViT has no RippleAttention that'):
        RippleWeightsHook().before_train(runner)


@pytest.mark.parametrize('interval', [0, -1, 1.5, True, '50'])
def test_bad_interval(interval):
    with pytest.raises(ValueError, match=r'RippleWeightsHook.interval must .* got '):
        RippleWeightsHook(interval)
