"""A training of one number, for tests of hooks and schedules."""

import itertools

import torch
from mmengine.evaluator import BaseMetric
from mmengine.model import BaseModel
from torch import nn

from mmlinattn.engine.runner.runner import PluginRunner

IMAGES = [dict(inputs=torch.ones(()))] * 2
_count = itertools.count()


class Net(BaseModel):
    """Its gradient is 1, so SGD lowers the weight by the sum of the learning rates."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(0.0, dtype=torch.float64))

    def forward(self, inputs, mode='tensor'):
        return dict(loss=self.weight * inputs.mean()) if mode == 'loss' else [{}]


class Pair(Net):
    """A model with two optimizers."""

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Parameter(torch.zeros(()))

    def train_step(self, data, optim_wrapper):
        optim_wrapper['a'].update_params(self.weight * 1)
        optim_wrapper['b'].update_params(self.other * 2)
        return {}


class Constant(BaseMetric):
    """Score of 1, so that only the first validation is an improvement."""

    def process(self, data_batch, data_samples):
        self.results.append(1)

    def compute_metrics(self, results):
        return dict(score=1.0, other=1.0)


def tiny_runner(
    folder, length=1, by_epoch=True, dataset=IMAGES, batch_size=1, metrics=None, build=PluginRunner,
    **changes,
):  # fmt: skip
    """Return a runner of ``length`` epochs or iterations, with validation if there are metrics."""
    loader = dict(
        dataset=dataset, collate_fn=dict(type='default_collate'), batch_size=batch_size,
        sampler=dict(type='DefaultSampler' if by_epoch else 'InfiniteSampler', shuffle=False),
    )  # fmt: skip
    options = dict(
        model=Net(), work_dir=str(folder), train_dataloader=loader,
        train_cfg={'by_epoch': by_epoch, 'max_epochs' if by_epoch else 'max_iters': length},
        optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.125)),
        experiment_name=f'{folder}-{next(_count)}'.replace('/', '_'),
    )  # fmt: skip
    for part in ('val', 'test') if metrics else ():
        options[f'{part}_dataloader'], options[f'{part}_cfg'] = loader, {}
        options[f'{part}_evaluator'] = metrics
    return build(**{**options, **changes})
