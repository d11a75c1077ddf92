"""Values wider and narrower than queries and keys, (B, heads, N, d_v), in every operator."""

import pytest
import torch

from mmlinattn.ops import (
    BackendError,
    Rotary,
    additive_attention,
    linear_attention,
    rala_attention,
    random_walk_attention,
    ripple_attention,
)
from mmlinattn.ops.common import dispatch, numerics

HW, DIM, HEADS, BATCH = (10, 15), 8, 2, 2
TOKENS = HW[0] * HW[1]
SHAPE = (BATCH, HEADS, TOKENS)


def run_linear(q, k, v, **options):
    return linear_attention(q, k, v, feature_map='elu+1', **options)


def run_rala(q, k, v, **options):
    rotary = Rotary(HW, q.shape[-1])
    return rala_attention(q, k, v, rotary=rotary, **options)


def run_weighted_rala(q, k, v, weights, **options):
    return rala_attention(q, k, v, token_weights=weights, **options)


def run_ripple(q, k, v, weights, **options):
    return ripple_attention(q.exp(), k.exp(), v, weights, hw_shape=HW, **options)


def run_walk(q, k, v, anchors_q, anchors_k, **options):
    return random_walk_attention(q, k, v, anchors_q, anchors_k, decay=0.5, **options)


# Operator, shapes of what it takes besides q, k and v, backends.
CASES = {
    'linear': (run_linear, (), ('torch',)),
    'rala': (run_rala, (), ('torch',)),
    'rala, given weights': (run_weighted_rala, ((HEADS, TOKENS),), ('torch',)),
    'random walk': (run_walk, ((HEADS, 5, DIM), (HEADS, 5, DIM)), ('torch',)),
    'ripple': (run_ripple, ((*SHAPE, 4),), ('tile', 'sat')),
}


def leaves_of(name, width, dim=DIM, dtype=torch.float64):
    shapes = ((*SHAPE, dim), (*SHAPE, dim), (*SHAPE, width))
    tokens = [torch.randn(shape, dtype=dtype) for shape in shapes]
    return [*tokens, *(torch.rand(shape, dtype=dtype) + 0.1 for shape in CASES[name][1])]


@pytest.mark.parametrize('name', CASES)
@pytest.mark.parametrize('width', [1, 3, 20])
@pytest.mark.parametrize('chunk', [1, 2**20])
def test_against_the_reference_with_gradients(name, width, chunk, monkeypatch):
    monkeypatch.setattr(numerics, 'CPU_CHUNK', chunk)  # one chunk, and several
    monkeypatch.setattr(numerics, 'CPU_TILES', chunk)
    run, _, backends = CASES[name]
    leaves, cotangent = leaves_of(name, width), torch.randn(*SHAPE, width, dtype=torch.float64)
    mask = torch.rand(BATCH, TOKENS) < 0.3
    results = []
    for backend in ('reference', *backends):
        inputs = [x.clone().requires_grad_() for x in leaves]
        out = run(*inputs, key_padding_mask=mask, backend=backend)
        assert out.shape == cotangent.shape
        results.append([out, *torch.autograd.grad(out, inputs, cotangent)])
    for fast in results[1:]:
        for a, b in zip(fast, results[0]):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize('name', CASES)
def test_compiled_as_one_graph(name, needs_to_compile):
    if name == 'ripple':
        needs_to_compile('ripple attention')
    run, leaves = CASES[name][0], leaves_of(name, 3)
    compiled = torch.compile(run, fullgraph=True, backend='aot_eager')
    torch.testing.assert_close(compiled(*leaves), run(*leaves))


@pytest.mark.skipif(dispatch.TRITON_PROBLEM is not None, reason=str(dispatch.TRITON_PROBLEM))
@pytest.mark.parametrize('name', ['linear', 'rala', 'ripple', 'random walk'])
def test_kernels_say_that_they_cannot(name, monkeypatch):
    monkeypatch.setenv('TRITON_INTERPRET', '1')
    leaves = leaves_of(name, 20, dim=16, dtype=torch.float32)
    leaves[3:] = [x.repeat_interleave(2, -1) if 'walk' in name else x for x in leaves[3:]]
    with pytest.raises(BackendError, match='values as wide as keys, got 20 and 16'):
        CASES[name][0](*leaves, backend='triton')


def test_additive_attention_multiplies_channel_by_channel():
    q, k, v = torch.randn(1, 1, 6, 4), torch.randn(1, 1, 6, 4), torch.randn(1, 1, 6, 3)
    with pytest.raises(ValueError, match=r'v must have 4 channels per head as q.*\(1, 1, 6, 3\)'):
        additive_attention(q, k, v, torch.randn(1, 4), torch.randn(1, 4))
