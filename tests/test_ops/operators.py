"""Calls of the operators, and the shapes of their tensors besides q, k and v."""

import torch

from mmlinattn.ops import (
    Rotary,
    additive_attention,
    linear_attention,
    mala_attention,
    nystrom_attention,
    rala_attention,
    random_walk_attention,
)


def call(operator, rotary=False, **options):
    """Return a function ``run(hw, q, k, v, *others, **more_options)``."""

    def run(hw, q, k, v, *others, **more):
        if options.get('feature_map') == 'identity':
            q, k = q.exp(), k.exp()  # far from 0, where the normaliser of signed features is
        if rotary:
            more['rotary'] = Rotary(hw, q.shape[-1])
        if operator is rala_attention and others:
            more['token_weights'], others = others[0].abs(), ()
        return operator(q, k, v, *others, **options, **more)

    return run


OPERATORS = {
    'linear': (call(linear_attention, feature_map='elu+1'), ()),
    'linear, identity': (call(linear_attention, feature_map='identity', eps=0.1), ()),
    'linear, means': (call(linear_attention, feature_map='identity', mean_normaliser=True), ()),
    'linear, relu': (call(linear_attention, feature_map='relu', eps=0.1), ()),
    'linear, softmax': (call(linear_attention, feature_map='softmax'), ()),
    'linear, rotary': (call(linear_attention, True, feature_map='elu+1', eps=0.1), ()),
    'rala': (call(rala_attention, True), ()),
    'rala, relu': (call(rala_attention, True, feature_map='relu'), ()),
    'rala, softmax': (call(rala_attention, True, feature_map='softmax'), ()),
    'rala, given weights': (call(rala_attention), ['h n']),
    'rala, given weights, rotary': (call(rala_attention, True), ['h n']),
    'mala': (call(mala_attention, True), ()),
    'nystrom': (call(nystrom_attention), ['h 5 d', 'b h 5 d']),
    'random walk': (call(random_walk_attention, decay=0.4), ['h 5 d', 'h 5 d']),
    'random walk, one step': (call(random_walk_attention, steps=1), ['h 6 d', 'h 6 d']),
    'additive': (call(additive_attention), ['h d', 'h d']),
}


def random_tensors(shapes, q):
    """Return tensors of shapes like 'h 5 d', where q is (b, h, n, d)."""
    sizes = dict(zip('bhnd', q.shape))
    sizes = [[sizes.get(size) or int(size) for size in shape.split()] for shape in shapes]
    return [torch.randn(size, dtype=q.dtype) for size in sizes]
