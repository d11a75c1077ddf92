"""Values wider and narrower than queries and keys, compiled and refused; see test_portable.py."""

from functools import partial

import pytest
import torch

from mmlinattn.ops import BackendError, additive_attention, ripple_attention
from mmlinattn.ops.common import dispatch
from tests.test_ops.operators import OPERATORS, random_tensors

HW, DIM, HEADS, BATCH = (10, 15), 8, 2, 2
TOKENS = HW[0] * HW[1]
SHAPE = (BATCH, HEADS, TOKENS)


def run_ripple(hw, q, k, v, weights, **options):
    return ripple_attention(q.exp(), k.exp(), v, weights.exp(), hw_shape=hw, **options)


CASES = {**OPERATORS, 'ripple': (run_ripple, ['b h n 4'])}


def leaves_of(name, width, dim=DIM, dtype=torch.float64):
    q, k, v = (torch.randn(*SHAPE, size, dtype=dtype) for size in (dim, dim, width))
    return [q, k, v, *random_tensors(CASES[name][1], q)]


@pytest.mark.parametrize('name', ['linear', 'rala', 'rala, given weights', 'ripple', 'random walk'])
def test_compiled_as_one_graph(name, needs_to_compile):
    if name == 'ripple':
        needs_to_compile('ripple attention')
    run, leaves = partial(CASES[name][0], HW), leaves_of(name, 3)
    torch.compiler.reset()  # sizes of the case before would become symbols
    compiled = torch.compile(run, fullgraph=True, backend='aot_eager')
    torch.testing.assert_close(compiled(*leaves), run(*leaves))


@pytest.mark.skipif(dispatch.TRITON_PROBLEM is not None, reason=str(dispatch.TRITON_PROBLEM))
@pytest.mark.parametrize('name', ['linear', 'rala', 'ripple', 'random walk'])
def test_kernels_say_that_they_cannot(name, monkeypatch):
    monkeypatch.setenv('TRITON_INTERPRET', '1')
    leaves = leaves_of(name, 20, dim=16, dtype=torch.float32)
    with pytest.raises(BackendError, match='values as wide as keys, got 20 and 16'):
        CASES[name][0](HW, *leaves, backend='triton')


def test_additive_attention_multiplies_channel_by_channel():
    q, k, v = torch.randn(1, 1, 6, 4), torch.randn(1, 1, 6, 4), torch.randn(1, 1, 6, 3)
    with pytest.raises(ValueError, match=r'v must have 4 channels per head as q.*\(1, 1, 6, 3\)'):
        additive_attention(q, k, v, torch.randn(1, 4), torch.randn(1, 4))
