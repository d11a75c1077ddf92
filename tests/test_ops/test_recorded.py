"""Operators against recorded outputs and gradients, see tests/golden/README.md."""

from functools import partial

import pytest
import torch
from torch.nn.functional import pad

from mmlinattn.ops import (
    Rotary,
    additive_attention,
    rala_attention,
    random_walk_attention,
    ripple_attention,
    stick_breaking,
)


def truncated(logits):
    return pad(stick_breaking(logits)[..., :-1], (0, 1))


def ripple(q, k, v, of_weights, break_=stick_breaking, **options):
    return ripple_attention(q, k, v, break_(of_weights), hw_shape=(7, 9), **options)


walk, log = partial(random_walk_attention, decay=0.1), partial(ripple, groups='log')
CASES = {
    'rala': partial(rala_attention, rotary=Rotary((7, 9), 8)),
    'additive': additive_attention,
    'random_walk': walk,
    'random_walk.masked': walk,
    'random_walk.one_step': partial(walk, steps=1),
    'random_walk.two_steps': partial(walk, steps=2),
    'ripple.chebyshev': ripple,
    'ripple.chebyshev.masked': ripple,
    'ripple.log': log,
    'ripple.log.masked': log,
    'ripple.fixed': partial(ripple, break_=lambda weights: weights),
    'ripple.truncated': partial(ripple, break_=truncated),
}
NAMES = ['q', 'k', 'v', 'anchors_q', 'anchors_k', 'w_q', 'w_k', 'stick_logits', 'weights']


@pytest.mark.parametrize('case', CASES)
@pytest.mark.parametrize('backend', ['reference', 'torch', 'sat'])
def test_output_and_gradients(golden, backend, case):
    if backend == 'sat' and not case.startswith('ripple'):
        pytest.skip('the torch form of ripple attention is by tiles')
    found, _ = golden('attention_ops')
    t = {key[len(case) + 1 :]: x for key, x in found.items() if key.startswith(f'{case}.')}
    leaves = {x: t[f'in.{x}'].clone().requires_grad_() for x in NAMES if f'in.{x}' in t}
    out = CASES[case](
        *leaves.values(), key_padding_mask=t.get('in.key_padding_mask'), backend=backend
    )
    grads = torch.autograd.grad(out, [*leaves.values()], t['in.cotangent'])
    tolerance = 1e-12 if backend == 'reference' else 1e-10
    assert (out - t['out']).abs().max() < tolerance
    for name, grad in zip(leaves, grads):
        if name != 'weights':  # recorded without gradient
            assert (grad - t[f'grad.{name}']).abs().max() < tolerance, name
