import torch

from mmlinattn.ops import mala_attention


def test_weights_sum_to_one_and_follow_the_length_of_the_query():
    """What linear attention lacks: a longer query has sharper weights."""
    q, k = torch.randn(2, 1, 1, 12, 8, dtype=torch.float64)
    q = q.relu() + 1  # phi then adds 1: its length can be scaled
    identity = torch.eye(12, dtype=torch.float64)[None, None]
    spreads = []
    for scale in (1, 4):
        weights = mala_attention(scale * q, k, identity, eps=0)
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
        spreads.append(weights.std(-1))
    assert (spreads[1] > 2 * spreads[0]).all()
