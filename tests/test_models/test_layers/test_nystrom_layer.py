import pytest
import torch

from mmlinattn.models.layers import NystromAttention


def softmax(x):
    return x.exp() / x.exp().sum(-1, keepdim=True)


def inverse(x):
    """Compute six iterations of the paper's pseudo-inverse of one matrix."""
    identity = torch.eye(len(x), dtype=x.dtype)
    z = x.T / (x.sum(0).max() * x.sum(1).max())
    for _ in range(6):
        z = z @ (13 * identity - x @ z @ (15 * identity - x @ z @ (7 * identity - x @ z))) / 4
    return z


def test_equals_its_definition(defined_by, dims):
    def definition(q, k, v, places):
        height, width = (int(side) for side in places.amax(0) + 1)

        def landmarks(x):
            grid = x.mT.unflatten(-1, (height, width))
            pooled = torch.nn.functional.adaptive_avg_pool2d(grid, (3, 3))
            return pooled.flatten(2).mT

        scale = 8**-0.5
        q_, k_ = landmarks(q), landmarks(k)
        kernel = softmax(scale * q @ k_.mT)
        kernel = kernel @ torch.stack([inverse(x) for x in softmax(scale * q_ @ k_.mT)])
        return kernel @ softmax(scale * q_ @ k.mT) @ v  # N x N kernel

    # With 4 x 5 tokens cells overlap; with 3 x 3 real tokens each cell is one token.
    defined_by(NystromAttention(**dims, num_landmarks=9), definition, tolerance=1e-8)


@pytest.mark.parametrize('number', [0, -4, 10])
def test_bad_landmarks(number, dims):
    with pytest.raises(ValueError, match=f'num_landmarks must be a square number, got {number}'):
        NystromAttention(**dims, num_landmarks=number)
