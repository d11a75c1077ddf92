import pytest
import torch

from mmlinattn.models.layers import SlinearAttention


def softmax(x, dim):
    return x.exp() / x.exp().sum(dim, keepdim=True)


@pytest.mark.parametrize('steps', [1, 2, 5, None])
def test_equals_its_definition(steps, defined_by, dims):
    """Compare with the walk on the N x N matrix, term by term or by its inverse."""
    decay = 0.6

    def definition(q, k, v, places):
        walk = softmax(q, -1) @ softmax(k, -2).mT  # [h, n, n]
        if steps is None:
            identity = torch.eye(walk.shape[-1], dtype=walk.dtype)
            return (1 - decay) * torch.linalg.inv(identity - decay * walk) @ walk @ v
        terms = [decay**i * torch.linalg.matrix_power(walk, i + 1) for i in range(steps)]
        return (1 - decay) / (1 - decay**steps) * sum(terms) @ v

    defined_by(SlinearAttention(**dims, steps=steps, decay=decay), definition)
