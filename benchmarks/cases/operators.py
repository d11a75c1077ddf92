"""Cases of operators, with torch alone."""

from functools import partial
from typing import Callable, Sequence

import torch.nn.functional as F
from torch import Tensor

from mmlinattn.ops import (
    Rotary,
    additive_attention,
    linear_attention,
    mala_attention,
    rala_attention,
    random_walk_attention,
    ripple_attention,
    stick_breaking,
)

from ..baselines import textbook
from .registry import OURS, Baseline, Baselines, Setup, case


def operator_baselines(
    ours: Callable[..., Tensor],
    inputs: Sequence[Tensor],
    textbook: Callable[..., Tensor],
) -> Baselines:
    """Return the baselines of an operator: its textbook formula and softmax attention.

    Args:
        ours: called with ``*inputs``.
        inputs: q, k, v and all other tensors with a gradient.
        textbook: called with ``*inputs``.
    """
    return {
        OURS: Baseline(lambda: ours(*inputs), inputs),
        'textbook': Baseline(lambda: textbook(*inputs), inputs),
        **softmax_baseline(*inputs[:3]),
    }


def softmax_baseline(q: Tensor, k: Tensor, v: Tensor) -> Baselines:
    """Return torch's softmax attention, which computes something else."""
    call = partial(F.scaled_dot_product_attention, q, k, v)
    return {'SDPA softmax': Baseline(call, (q, k, v), same=False, quadratic=True)}


@case('rala', 'operator', 'RALA with rotary position; linear in the tokens, SDPA is quadratic.')
def _rala(setup: Setup) -> Baselines:
    rotary, tables = Rotary(setup.hw_shape, setup.head_dim), setup.rotary_tables()
    return operator_baselines(
        partial(rala_attention, rotary=rotary), setup.qkv(), partial(textbook.rala, rotary=tables)
    )


@case('mala', 'operator', 'MALA with rotary position, beside RALA; linear in the tokens.')
def _mala(setup: Setup) -> Baselines:
    rotary, tables = Rotary(setup.hw_shape, setup.head_dim), setup.rotary_tables()
    q, k, v = setup.qkv()
    baselines = operator_baselines(
        partial(mala_attention, rotary=rotary), (q, k, v), partial(textbook.mala, rotary=tables)
    )
    call = partial(rala_attention, q, k, v, rotary=rotary)
    return {**baselines, 'RALA': Baseline(call, (q, k, v), same=False)}


@case(
    'linear',
    'operator',
    'Linear attention of positive features; linear in the tokens, SDPA is quadratic.',
)
def _linear(setup: Setup) -> Baselines:
    return operator_baselines(linear_attention, setup.features(), textbook.linear)


@case('linear-elu+1', 'operator', 'Linear attention with the feature map elu + 1 inside.')
def _linear_elu1(setup: Setup) -> Baselines:
    return operator_baselines(
        partial(linear_attention, feature_map='elu+1'),
        setup.qkv(),
        lambda q, k, v: textbook.linear(F.elu(q) + 1, F.elu(k) + 1, v),
    )


@case('additive', 'operator', 'Additive attention; linear in the tokens, SDPA is quadratic.')
def _additive(setup: Setup) -> Baselines:
    weights = [setup.leaf(setup.randn(setup.heads, setup.head_dim)) for _ in range(2)]
    return operator_baselines(additive_attention, (*setup.qkv(), *weights), textbook.additive)


MAX_DISTANCE = 4


@case(
    'ripple',
    'operator',
    f'Ripple attention, R = {MAX_DISTANCE}: tiles against summed-area tables (the algorithm of '
    'the paper, with a backward pass of its own, and as a textbook has it with that of autograd), '
    'plain linear attention of the same features and softmax attention.',
)
def _ripple(setup: Setup) -> Baselines:
    q, k, v = setup.features()
    logits = setup.randn(setup.batch, setup.num_tokens, setup.heads, MAX_DISTANCE)
    weights = setup.leaf(stick_breaking(logits).transpose(1, 2))

    def ripple(**options) -> Baseline:
        return Baseline(
            lambda: ripple_attention(q, k, v, weights, hw_shape=setup.hw_shape, **options),
            (q, k, v, weights),
        )

    baselines = {OURS: ripple(), 'summed-area tables': ripple(backend='sat')}
    if setup.device.type == 'cpu':  # takes hundreds of GB at the sizes for a GPU
        baselines['tables, textbook'] = Baseline(
            lambda: textbook.ripple_tables(q, k, v, weights, setup.hw_shape), (q, k, v, weights)
        )
    baselines['linear'] = Baseline(lambda: linear_attention(q, k, v), (q, k, v), same=False)
    return {**baselines, **softmax_baseline(q, k, v)}


NUM_ANCHORS, DECAY = 64, 0.1


@case(
    'random-walk',
    'operator',
    f'Random walks between {NUM_ANCHORS} anchors, decay {DECAY}, against the order of the paper '
    'with an inverse; linear in the tokens, SDPA is quadratic.',
)
def _random_walk(setup: Setup) -> Baselines:
    anchors = [
        setup.leaf(0.1 * setup.randn(setup.heads, NUM_ANCHORS, setup.head_dim)) for _ in range(2)
    ]
    return operator_baselines(
        partial(random_walk_attention, decay=DECAY),
        (*setup.qkv(), *anchors),
        partial(textbook.random_walk, decay=DECAY),
    )
