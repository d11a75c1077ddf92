"""Every family of configs trains on Shapes: all of its parameters, with and without objects."""

import pytest

from mmlinattn.datasets import shapes

from .families import FAMILIES
from .programs import Program, free_port


@pytest.fixture(scope='module')
def shapes_root(tmp_path_factory):
    root = tmp_path_factory.mktemp('families') / 'shapes'
    return shapes.generate(root, num_train=4, num_val=2, image_size=64, workers=1)


@pytest.mark.slow
def test_two_steps_on_two_processes(root, shapes_root, tmp_path):
    """As DDP is by default: it stops at a parameter that took no part, here with its name. One
    process of the two has images without objects; the data sets have the layouts of COCO, ADE20K,
    Cityscapes and ImageNet."""
    group = dict(
        WORLD_SIZE='2',
        MASTER_ADDR='127.0.0.1',
        MASTER_PORT=free_port(),
        TORCH_DISTRIBUTED_DEBUG='INFO',
    )
    script = root / 'tests/train_families.py'
    programs = [
        Program(script, [shapes_root], tmp_path / f'{i}.out', [root], RANK=str(i), **group)
        for i in range(2)
    ]
    for program in programs:
        assert program.end() == 0, program.text()[-4000:]
    lines = programs[0].text().splitlines()
    assert [line.split()[1] for line in lines if line.startswith('through ')] == list(FAMILIES)
