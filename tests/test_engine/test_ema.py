"""The moving average of the weights: its values, its scores, and the file it is saved in."""

import json
import pickle
from typing import List

import pytest
import torch
from mmengine.evaluator import BaseMetric, DumpResults
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.registry import MODELS
from torch import nn

from mmlinattn.checkpoints import read_checkpoint
from mmlinattn.engine import ModelEMAHook
from tests.test_engine.tiny_runner import tiny_runner

DECAY = 0.9


class Net(BaseModel):
    """A vector, and a batch norm whose statistics follow the batches."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))
        self.norm = nn.BatchNorm1d(2)

    def init_weights(self) -> None:
        super().init_weights()
        self.weight.data = torch.tensor([0.5, -1.0])

    def forward(self, inputs, mode='tensor'):
        x = self.norm(inputs * self.weight)
        return dict(loss=(x - inputs).square().sum()) if mode == 'loss' else [self.weight.clone()]


class WeightMetric(BaseMetric):
    """Minus the distance of the first weight from 2."""

    default_prefix = 'accuracy'

    def process(self, data_batch, data_samples) -> None:
        self.results.append(-abs(float(data_samples[0][0]) - 2))

    def compute_metrics(self, results: list) -> dict:
        return dict(top1=sum(results) / len(results))


class Recorder(Hook):
    """Sets the first weight after an iteration to a given value, and records all weights."""

    priority = 'ABOVE_NORMAL'  # before the average

    def __init__(self, values=()) -> None:
        self.values, self.states = values, []

    def before_train(self, runner) -> None:
        self.states.append({k: v.clone() for k, v in runner.model.state_dict().items()})

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None) -> None:
        if self.values:
            with torch.no_grad():
                runner.model.weight[0] = self.values[runner.iter]
        self.states.append({k: v.clone() for k, v in runner.model.state_dict().items()})


def runner_of(folder, epochs=1, batches=1, momentum=1 - DECAY, hooks=(), **options):
    torch.manual_seed(0)
    images = [dict(inputs=torch.randn(2)) for _ in range(4 * batches)]
    ema = dict(type='ModelEMAHook', momentum=momentum, update_buffers=True)
    saving = dict(type='AtomicCheckpointHook', save_best='accuracy/top1_best')
    return tiny_runner(
        folder, epochs, dataset=images, batch_size=4, metrics=[WeightMetric()], model=Net(),
        default_hooks=dict(checkpoint=saving), custom_hooks=[ema, *hooks], **options,
    )  # fmt: skip


def average_in(path) -> dict:
    found = torch.load(path, weights_only=False)['ema_state_dict']
    return {k.removeprefix('module.'): v for k, v in found.items() if k != 'steps'}


def definition(states: List[dict], decay: float) -> dict:
    """Sum of all weights since the start with their decays, written out."""
    steps = len(states) - 1
    return {
        name: decay**steps * states[0][name].double()
        + sum((1 - decay) * decay ** (steps - t) * states[t][name] for t in range(1, steps + 1))
        for name in states[0]
        if states[0][name].is_floating_point()
    }


def test_weights_and_statistics_are_those_of_the_definition(tmp_path):
    recorder = Recorder()
    runner_of(tmp_path, batches=6, hooks=[recorder]).train()
    assert len(recorder.states) == 7
    found = average_in(tmp_path / 'epoch_1.pth')
    expected = definition(recorder.states, DECAY)
    assert set(expected) == set(found) - {'norm.num_batches_tracked'}
    assert {'norm.running_mean', 'norm.running_var', 'weight'} < set(expected)
    for name, value in expected.items():
        torch.testing.assert_close(found[name].double(), value, rtol=1e-5, atol=1e-6)
        assert not torch.allclose(found[name], recorder.states[-1][name], rtol=1e-3), name
    content = read_checkpoint(tmp_path / 'epoch_1.pth')
    assert all(value.equal(content['state_dict'][k]) for k, value in recorder.states[-1].items())


class ManyTensors(Net):
    """Weights that two layers share, a table that is not saved, and a buffer that is replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2, 2, bias=False) for _ in range(3))
        self.layers[1].weight = self.layers[0].weight
        self.register_buffer('table', torch.ones(2), persistent=False)
        self.register_buffer('running', torch.zeros(2))

    def change(self) -> None:
        for x in [*self.parameters(), self.norm.running_mean, self.table]:
            x.data.add_(torch.randn_like(x))
        self.norm.num_batches_tracked += 1
        self.running = self.running + 1


@pytest.mark.parametrize('interval', [1, 2])
def test_one_operation_averages_all_tensors(interval):
    torch.manual_seed(0)
    model = ManyTensors()
    options = dict(momentum=0.1, update_buffers=True, interval=interval)
    average = MODELS.build(dict(ModelEMAHook(**options).ema_cfg, model=model))
    average.steps.fill_(1)
    expected = {k: v.clone() for k, v in average.module.state_dict().items()}
    assert {'running', 'layers.1.weight'} < set(expected) and 'table' not in expected
    for step in range(1, 5):
        model.change()
        with torch.profiler.profile() as profile:
            average.update_parameters(model)
        names = [event.name for event in profile.events()]
        for name, new in model.state_dict().items():
            if name != 'norm.num_batches_tracked' and step % interval == 0:
                expected[name] += 0.1 * (new - expected[name])
        assert names.count('aten::_foreach_lerp_') == (step % interval == 0)
    assert average.steps == 5 and average.module.table.equal(torch.ones(2))
    for name, value in average.module.state_dict().items():
        torch.testing.assert_close(value, expected[name], msg=name)


def test_a_module_that_is_replaced_between_epochs_is_averaged(tmp_path):
    runner = runner_of(tmp_path)
    runner.train()
    (hook,) = (hook for hook in runner.hooks if isinstance(hook, ModelEMAHook))
    runner.model.norm = nn.BatchNorm1d(2)
    runner.model.norm.weight.data.fill_(7)
    before = hook.ema_model.module.norm.weight.clone()
    hook.before_train_epoch(runner)
    hook.after_train_iter(runner, 0)
    expected = before + 0.1 * (7 - before)
    torch.testing.assert_close(hook.ema_model.module.norm.weight, expected)


def test_both_are_scored_and_the_best_of_both_is_kept(tmp_path):
    # From 0.5 the average with a decay of 0.5 is 0.75, 0.5, 2.25, 1.375: the best is the third.
    # That of the weights themselves is the first.
    runner_of(tmp_path, 4, momentum=0.5, hooks=[Recorder([1.0, 0.25, 4.0, 0.5])]).train()
    log = next(tmp_path.glob('*/vis_data/scalars.json'))
    scores = [line for line in map(json.loads, log.open()) if 'accuracy/top1' in line]
    assert [s['accuracy/top1'] for s in scores] == [-1, -1.75, -2, -1.5]
    assert [s['accuracy/top1_ema'] for s in scores] == [-1.25, -1.5, -0.25, -0.625]
    assert [s['accuracy/top1_best'] for s in scores] == [-1, -1.5, -0.25, -0.625]
    text = next(tmp_path.glob('*/*.log')).read_text()
    assert 'accuracy/top1: -2.0000' in text and 'accuracy/top1_ema: -0.2500' in text
    (best,) = tmp_path.glob('best_*.pth')
    assert best.name == 'best_accuracy_top1_best_epoch_3.pth'
    # Both are in the file, and a test scores both.
    assert read_checkpoint(best)['state_dict']['weight'][0] == 4.0
    assert average_in(best)['weight'][0] == 2.25
    # EarlyStoppingHook builds the training loop, also for a test.
    stop = dict(type='EarlyStoppingHook', monitor='accuracy/top1')
    found = runner_of(tmp_path / 'test', load_from=str(best), hooks=[stop]).test()
    expected = {'': -2, '_ema': -0.25, '_best': -0.25}
    assert found == {f'accuracy/top1{name}': score for name, score in expected.items()}
    # Saved predictions are those of the weights themselves.
    runner = runner_of(tmp_path / 'dump', load_from=str(best))
    saved = tmp_path / 'predictions.pkl'
    runner.test_evaluator.metrics.append(DumpResults(str(saved)))
    assert runner.test() == found
    assert [float(weight[0]) for weight in pickle.loads(saved.read_bytes())] == [4.0]


def test_the_model_is_scored_alone_without_an_average_in_the_file(tmp_path):
    released = tmp_path / 'released.pth'
    torch.save(dict(state_dict=Net().state_dict()), released)
    found = runner_of(tmp_path, load_from=str(released)).test()
    assert found == {'accuracy/top1': -2.0}


def test_a_new_training_from_a_checkpoint_starts_its_average_from_the_raw_weights(tmp_path):
    runner_of(tmp_path / 'first', 2, hooks=[Recorder([3.0, 1.0])]).train()
    recorder = Recorder([7.0])
    first = str(tmp_path / 'first/epoch_2.pth')
    runner_of(tmp_path / 'second', momentum=0.5, hooks=[recorder], load_from=first).train()
    assert recorder.states[0]['weight'][0] == 1
    assert average_in(tmp_path / 'second/epoch_1.pth')['weight'][0] == 4  # of 1 and 7


def _join(rank, folder):
    torch.distributed.init_process_group('gloo', f'file://{folder}/s', world_size=2, rank=rank)
    hook, net = ModelEMAHook(update_buffers=True), Net()
    net.norm.running_mean.fill_(rank)
    hook.ema_model = MODELS.build(hook.ema_cfg, default_args=dict(model=net))
    hook.after_train_epoch(None)
    torch.save(hook.ema_model.module.state_dict(), f'{folder}/{rank}.pth')
    torch.distributed.destroy_process_group()


def test_statistics_of_several_processes_are_averaged(tmp_path):
    """Else each process scores its own ones, and the file has those of the first."""
    torch.multiprocessing.spawn(_join, (str(tmp_path),), nprocs=2)
    for rank in range(2):
        found = torch.load(tmp_path / f'{rank}.pth')
        assert (found['norm.running_mean'] == 0.5).all() and found['norm.num_batches_tracked'] == 0


def test_unknown_score(tmp_path):
    runner = runner_of(tmp_path)
    (hook,) = (hook for hook in runner.hooks if isinstance(hook, ModelEMAHook))
    hook.score = 'mIoU'
    with pytest.raises(ValueError, match=r"score is 'mIoU', not one of \['accuracy/top1'\]"):
        runner.train()
