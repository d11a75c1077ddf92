import pytest
import torch

from mmlinattn.ops import nystrom_attention
from mmlinattn.ops.random_walk.anchor_solver import iterative_pinv


def tokens(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def test_tokens_as_landmarks_give_softmax_attention():
    q, k, v = tokens(3, 1, 2, 6, 8).unbind()
    out = nystrom_attention(q, k, v, q, k, iterations=60)
    torch.testing.assert_close(out, (8**-0.5 * q @ k.mT).softmax(-1) @ v, rtol=1e-6, atol=1e-6)


def test_the_inverse_of_a_matrix_does_not_depend_on_others():
    x = tokens(3, 5, 5).softmax(-1)
    together = iterative_pinv(x, 4)
    torch.testing.assert_close(together[1], iterative_pinv(x[1], 4))
    torch.testing.assert_close(iterative_pinv(x, 40), torch.linalg.pinv(x), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    'change, message',
    [
        (dict(iterations=0), 'iterations must be a positive integer, got 0'),
        (dict(landmarks_q=torch.zeros(2, 4, 7)), r'landmarks_q must have shape .*got \(2, 4, 7\)'),
        (dict(landmarks_k=torch.zeros(2, 3, 8)), 'landmarks_q has 4 anchors, landmarks_k has 3'),
    ],
)
def test_bad_input(change, message):
    q = torch.zeros(1, 2, 6, 8)
    landmarks = torch.zeros(2, 4, 8)
    arguments = dict(dict(landmarks_q=landmarks, landmarks_k=landmarks), **change)
    with pytest.raises(ValueError, match=message):
        nystrom_attention(q, q, q, **arguments)
