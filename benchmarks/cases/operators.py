"""Cases of operators, with torch alone."""

from functools import partial
from typing import Callable

import torch.nn.functional as F
from torch import Tensor

from ..baselines import textbook
from .problems import DECAY, MAX_DISTANCE, NUM_ANCHORS, Problem
from .registry import OURS, Baseline, Baselines, Setup, case


def operator_baselines(setup: Setup, name: str, formula: Callable[..., Tensor]) -> Baselines:
    """Return the baselines of an operator: its textbook formula and softmax attention.

    Args:
        name: in :data:`benchmarks.cases.problems.OPERATORS`.
        formula: called with q, k, v and all other tensors with a gradient.
    """
    ours = operator(setup, name)
    q, k, v = ours.inputs[:3]
    softmax = partial(F.scaled_dot_product_attention, q, k, v)
    return {
        OURS: ours,
        'textbook': Baseline(partial(formula, *ours.inputs), ours.inputs),
        'SDPA softmax': Baseline(softmax, (q, k, v), same=False, quadratic=True),
    }


def operator(setup: Setup, name: str, same: bool = True, backend: str = 'auto') -> Baseline:
    """Return an operator of this package; all have the same q, k and v, or features of them."""
    problem = Problem.of(name, setup)
    return Baseline(partial(problem.run, backend), tuple(problem.leaves.values()), same=same)


@case('rala', 'RALA with rotary position; linear in the tokens, SDPA is quadratic.')
def _rala(setup: Setup) -> Baselines:
    return operator_baselines(setup, 'rala', partial(textbook.rala, rotary=setup.rotary_tables()))


@case('mala', 'MALA with rotary position, beside RALA; linear in the tokens.')
def _mala(setup: Setup) -> Baselines:
    formula = partial(textbook.mala, rotary=setup.rotary_tables())
    rala = operator(setup, 'rala', same=False)
    return {**operator_baselines(setup, 'mala', formula), 'RALA': rala}


@case('linear', 'Linear attention of positive features; linear in the tokens, SDPA is quadratic.')
def _linear(setup: Setup) -> Baselines:
    return operator_baselines(setup, 'linear', textbook.linear)


@case('linear-elu+1', 'Linear attention with the feature map elu + 1 inside.')
def _linear_elu1(setup: Setup) -> Baselines:
    def formula(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return textbook.linear(F.elu(q) + 1, F.elu(k) + 1, v)

    return operator_baselines(setup, 'linear, elu+1', formula)


@case('additive', 'Additive attention; linear in the tokens, SDPA is quadratic.')
def _additive(setup: Setup) -> Baselines:
    return operator_baselines(setup, 'additive', textbook.additive)


@case(
    'ripple',
    f'Ripple attention, R = {MAX_DISTANCE}: tiles against summed-area tables (the algorithm of '
    'the paper, with a backward pass of its own, and as a textbook has it with that of autograd), '
    'plain linear attention of the same features and softmax attention.',
)
def _ripple(setup: Setup) -> Baselines:
    formula = partial(textbook.ripple_tables, hw_shape=setup.hw_shape)
    found = operator_baselines(setup, 'ripple', formula)
    tables = found.pop('textbook')
    found['summed-area tables'] = operator(setup, 'ripple', backend='sat')
    if setup.device.type == 'cpu':  # takes hundreds of GB at the sizes for a GPU
        found['tables, textbook'] = tables
    return {**found, 'linear': operator(setup, 'linear', same=False)}


@case(
    'random-walk',
    f'Random walks between {NUM_ANCHORS} anchors, decay {DECAY}, against the order of the paper '
    'with an inverse; linear in the tokens, SDPA is quadratic.',
)
def _random_walk(setup: Setup) -> Baselines:
    return operator_baselines(setup, 'random-walk', partial(textbook.random_walk, decay=DECAY))
