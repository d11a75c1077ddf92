"""Released RAVLT files, with the names and tensors of the recorded release."""

import pytest
import torch

from tests.recordings import below


def random_tensors(shapes):
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.tensor(7)
        if name.endswith('num_batches_tracked')
        else torch.rand(shape, generator=generator)
        for name, shape in shapes.items()
    }


@pytest.fixture
def tensors():
    """Return the function that makes random tensors of a dict of names and shapes."""
    return random_tensors


@pytest.fixture
def dense(golden):
    """A released dense backbone."""
    return below(golden('ravlt_released')[0], 'det.param.')


@pytest.fixture
def classifier(golden):
    """A released classifier."""
    return below(golden('ravlt_released')[0], 'cls.param.')


@pytest.fixture
def backbone_cfg():
    """The config that these weights fit."""
    arch = dict(
        embed_dims=(16, 32, 48, 64), depths=(1, 1, 2, 1), num_heads=(1, 2, 3, 4), mlp_ratios=3.5
    )
    return dict(type='RAVLT', arch=arch, norm_cfg=dict(type='BN'))
