"""Batch sizes by the estimate of memory."""

import math

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import DATASETS, MODELS

from mmlinattn.analysis import auto_batch
from mmlinattn.analysis.auto_batch import (
    GIB,
    available_memory,
    batch_shape,
    largest_batch,
    segmentation_loss,
    set_auto_batch,
)
from mmlinattn.analysis.operators import training_step
from mmlinattn.cli import arguments

SIDE = 64


class Images:
    def __init__(self, number=1000, sides=((SIDE, 40), (30, SIDE))):
        self.number, self.sides = number, sides

    def __len__(self):
        return self.number

    def __getitem__(self, i):
        return dict(inputs=torch.zeros(3, *self.sides[i % len(self.sides)]))


@pytest.fixture
def cfg(monkeypatch):
    """A convolution: a batch keeps its images for the gradient of the weight."""
    monkeypatch.setitem(DATASETS.module_dict, 'Images', Images)
    monkeypatch.setitem(MODELS.module_dict, 'OneConv', OneConv)
    return Config(
        dict(
            model=dict(type='OneConv'),
            optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.1)),
            train_dataloader=dict(batch_size=2, dataset=dict(type='Images')),
        )
    )


class OneConv(torch.nn.Conv2d):
    def __init__(self) -> None:
        super().__init__(3, 8, 3, padding=1)


def needed(batch):
    """The estimate of a batch, which the choice extrapolates from two small ones."""
    model = OneConv()
    step = training_step(model, (SIDE, SIDE), batch)
    parameters = sum(p.nbytes for p in model.parameters())
    return 1e9 + 1.06 * (2 * parameters + step.peak)


@pytest.mark.parametrize('batch', [1, 2, 37])
def test_the_largest_batch_that_fits(cfg, batch):
    found = largest_batch(cfg, 2 * needed(batch) + 2, 0.5)
    assert (found.batch, found.shape, found.images) == (batch, (SIDE, SIDE), 1000)
    assert found.memory == pytest.approx(needed(batch), rel=1e-9)
    if batch > 1:
        assert largest_batch(cfg, needed(batch) - 1, 1.0).batch == batch - 1


def test_no_more_than_the_images_of_an_epoch(cfg):
    cfg.train_dataloader.dataset.number = 5
    assert largest_batch(cfg, 100 * GIB).batch == 5


def test_not_even_one_fits(cfg, monkeypatch):
    monkeypatch.setattr(auto_batch, 'available_memory', lambda: 1.0 * GIB)
    with pytest.raises(
        ValueError, match=r'one image of 64x64 needs .* 0.9 GiB, but 70 % of .* 1.0'
    ):
        set_auto_batch(cfg, 0.7)
    assert cfg.train_dataloader.batch_size == 2


def test_the_message_and_the_learning_rate(cfg, monkeypatch):
    monkeypatch.setattr(auto_batch, 'available_memory', lambda: 2.0 * GIB)
    said = set_auto_batch(cfg, 0.5)
    batch = cfg.train_dataloader.batch_size
    assert said.startswith(
        f'--auto-batch: {batch} images of 64x64 a process (config: 2); estimated'
    )
    assert '1.0 GiB, limit 50 % of 2.0 GiB. The learning rate stays' in said
    assert cfg.optim_wrapper.optimizer.lr == 0.1
    cfg.auto_scale_lr = dict(enable=True, base_batch_size=16)
    assert set_auto_batch(cfg, 0.5).endswith('rate is scaled from 16 images a step.')
    assert cfg.optim_wrapper.optimizer.lr == 0.1  # MMEngine scales it when the training begins


@pytest.mark.parametrize('fraction', [0, -1, 1.5, math.nan])
def test_wrong_fractions(cfg, fraction):
    with pytest.raises(ValueError, match=rf'--auto-batch must be in \(0, 1\], got {fraction}'):
        set_auto_batch(cfg, fraction)


def test_a_strategy(cfg):
    cfg.strategy = dict(type='FSDP2Strategy')
    with pytest.raises(ValueError, match='does not estimate a training with a strategy'):
        set_auto_batch(cfg, 0.7)


def test_images_are_padded_as_the_model_pads_them(cfg):
    cfg.model.data_preprocessor = dict(pad_size_divisor=48)
    assert batch_shape(cfg, Images()) == (96, 96)
    cfg.model.data_preprocessor = dict(size=(100, 20))
    assert batch_shape(cfg, Images()) == (100, SIDE)
    assert batch_shape(cfg, Images(3, [(8, 9), (20, 10), (7, 30)])) == (100, 30)


def test_losses_of_segmentors():
    head = torch.nn.Module()
    head.conv_seg, head.num_classes = torch.nn.Conv2d(1, 5, 1), 5
    model = torch.nn.ModuleList([head, torch.nn.Linear(2, 2)])
    assert segmentation_loss(model, (10, 20)) == 4 * 4 * 5 * 200


def test_available_memory(tmp_path, monkeypatch):
    assert 0 < available_memory() < 2**50
    alone = available_memory()
    monkeypatch.setenv('LOCAL_WORLD_SIZE', '4')
    assert available_memory() == pytest.approx(alone / 4, rel=0.5)
    files = {'memory.max': '1000', 'memory.current': '600', 'memory.stat': 'inactive_file 100\nx 1'}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert auto_batch._of_container(tmp_path) == [500]
    (tmp_path / 'memory.max').write_text('max\n')
    assert auto_batch._of_container(tmp_path) == auto_batch._of_system(tmp_path / 'no') == []


def test_the_flag():
    assert arguments.train(['x.py']).auto_batch is None
    assert arguments.train(['x.py', '--auto-batch']).auto_batch == auto_batch.FRACTION
    assert arguments.train(['x.py', '--auto-batch', '0.4']).auto_batch == 0.4
