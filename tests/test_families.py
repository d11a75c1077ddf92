"""Every family of configs trains on Shapes: all of its parameters, with and without objects."""

import pytest
import torch
from mmengine.optim import OptimWrapper
from mmengine.registry import MODELS

from mmlinattn.datasets import shapes
from mmlinattn.engine.runner import plain_batch_norm

from .families import FAMILIES, batch_of, shrunk, without_objects
from .programs import Program, free_port


@pytest.fixture(scope='module')
def shapes_root(tmp_path_factory):
    root = tmp_path_factory.mktemp('families') / 'shapes'
    return shapes.generate(root, num_train=4, num_val=2, image_size=64, workers=1)


@pytest.mark.parametrize('family', FAMILIES)
def test_one_step_from_the_data_set_of_the_config(shapes_root, family):
    """From each of the layouts of COCO, ADE20K, Cityscapes and ImageNet."""
    cfg = shrunk(family, shapes_root)
    torch.manual_seed(0)
    model = plain_batch_norm(MODELS.build(cfg.model))
    model.init_weights()
    model.train()
    before = {name: value.clone() for name, value in model.named_parameters()}
    wrapper = OptimWrapper(torch.optim.SGD(model.parameters(), lr=1e-2))
    losses = model.train_step(batch_of(cfg), wrapper)
    assert torch.isfinite(losses['loss'])
    changed = {n for n, value in model.named_parameters() if not torch.equal(value, before[n])}
    assert len(changed) > len(before) / 2


@pytest.mark.parametrize('family', FAMILIES)
def test_no_parameter_is_without_a_gradient(shapes_root, family):
    """Where no image has an object; with objects, on one of the two processes below."""
    cfg = shrunk(family, shapes_root)
    torch.manual_seed(0)
    model = plain_batch_norm(MODELS.build(cfg.model))
    model.train()
    data = model.data_preprocessor(without_objects(batch_of(cfg)), training=True)
    loss, _ = model.parse_losses(model(**data, mode='loss'))
    loss.backward()
    trained = {n: value for n, value in model.named_parameters() if value.requires_grad}
    assert trained and torch.isfinite(loss)
    assert [name for name, value in trained.items() if value.grad is None] == []
    assert all(torch.isfinite(value.grad).all() for value in trained.values())


def test_three_steps_on_two_processes(root, shapes_root, tmp_path):
    """As DDP is by default: it stops at a parameter that took no part. One process of the two
    has images without objects."""
    group = dict(WORLD_SIZE='2', MASTER_ADDR='127.0.0.1', MASTER_PORT=free_port())
    script = root / 'tests/train_families.py'
    programs = [
        Program(script, [shapes_root], tmp_path / f'{i}.out', [root], RANK=str(i), **group)
        for i in range(2)
    ]
    for program in programs:
        assert program.end() == 0, program.text()[-4000:]
    lines = programs[0].text().splitlines()
    assert [line.split()[1] for line in lines if line.startswith('through ')] == list(FAMILIES)
