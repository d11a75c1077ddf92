"""Every family of configs trains on Shapes: all of its parameters, with and without objects."""

import pytest

from .families import FAMILIES
from .programs import run_two


@pytest.mark.slow
def test_two_steps_on_two_processes(root, shapes_root, tmp_path):
    """As DDP is by default: it stops at a parameter that took no part, here with its name. One
    process of the two has images without objects; the data sets have the layouts of COCO, ADE20K,
    Cityscapes and ImageNet."""
    script, more = root / 'tests/train_families.py', dict(TORCH_DISTRIBUTED_DEBUG='INFO')
    lines = run_two(script, [shapes_root], tmp_path, root, **more).text().splitlines()
    assert [line.split()[1] for line in lines if line.startswith('through ')] == list(FAMILIES)
