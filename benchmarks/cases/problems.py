"""Inputs of every operator, and errors relative to its torch form in float64."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Callable, Dict, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from mmlinattn import ops

from ..measure import difference
from .registry import Setup

MAX_DISTANCE, NUM_ANCHORS, DECAY = 4, 64, 0.1  # of ripple attention and of random walks

# Relative errors of an output, of a gradient, and of a gradient that is a sum over tokens: that of
# a parameter, and every gradient if the output is summed up. The first two are about four times the
# errors in Triton's interpreter. Terms of the third cancel and leave the rounding of each term: on
# an H100 the bias of learnt features has 3.6e-2 in bfloat16 (torch form: 2.5e-2) and 4.5e-3 in
# float16, and float32 forms of 40,000 tokens have 3e-4.
TOLERANCES = {
    torch.bfloat16: (1e-2, 3e-2, 6e-2),
    torch.float16: (1e-3, 4e-3, 8e-3),
    torch.float32: (1e-5, 2e-4, 2e-3),
    torch.float64: (1e-10, 1e-10, 1e-10),
}


@dataclass(frozen=True)
class Operator:
    """An operator of the package.

    Args:
        run: computes the output from a setup, the tensors, ``key_padding_mask`` and ``backend``.
        features: True if queries and keys are non-negative features.
        extra: returns the tensors with a gradient besides q, k and v, by name.
        backends: backends that are compared with float64.
        tokens: ``'cross'`` if keys are other tokens than queries, ``'packed'`` for packed images.
        timed: True if the operator is timed as well.
    """

    run: Callable[..., Tensor]
    features: bool = False
    extra: Callable[[Setup], Dict[str, Tensor]] = lambda setup: {}
    backends: Tuple[str, ...] = ('triton', 'torch')
    tokens: str = ''
    timed: bool = True


def images(setup: Setup) -> ops.PackedShapes:
    """Return two images of different sizes with the tokens of a map; one image of one token."""
    height, width = setup.hw_shape
    if height > 1:
        return ops.PackedShapes([(height // 3 + 1, width), (height - height // 3 - 1, width)])
    return ops.PackedShapes([(1, part) for part in (width // 3, width - width // 3) if part])


def _anchors(setup: Setup) -> Dict[str, Tensor]:
    shape = setup.heads, min(NUM_ANCHORS, setup.head_dim), setup.head_dim
    return {name: 0.1 * setup.randn(*shape) for name in ('anchors_q', 'anchors_k')}


def _rings(setup: Setup) -> Dict[str, Tensor]:
    """Return weights (B, heads, N, R + 1), stored token by token as a projection stores them."""
    shape = setup.batch, setup.num_tokens, setup.heads, MAX_DISTANCE + 1
    return {'weights': setup.randn(*shape).transpose(1, 2).softmax(-1)}


def _learnt(setup: Setup) -> Dict[str, Tensor]:
    """Return the parameters of features of about 3: near 0 rounding decides about a gradient."""
    dim, heads = setup.head_dim, setup.heads
    return {
        'frequencies': setup.randn(heads, dim, dim),
        'weight': (8 * dim) ** -0.5 * setup.randn(heads, dim, 2 * dim),
        'bias': 3 + 0.1 * setup.randn(heads, dim),
    }


def _run_learnt(setup: Setup, x: Sequence[Tensor], **options) -> Tensor:
    features = ops.adaptive_features(*x[:2], *x[3:], backend=options['backend'])
    return ops.linear_attention(*features, x[2], **options)


def _walk(steps: Optional[int]) -> Operator:
    return Operator(
        lambda s, x, **options: ops.random_walk_attention(*x, decay=DECAY, steps=steps, **options),
        extra=_anchors,
        timed=steps in (None, 1),
    )


def _family(name: str, call: Callable, rotary: bool) -> Dict[str, Operator]:
    """Return an operator, its cross-attention, and its packed images with rotary position."""

    def alone(s: Setup, x: Sequence[Tensor], **options) -> Tensor:
        return call(*x, rotary=ops.Rotary(s.hw_shape, s.head_dim) if rotary else None, **options)

    def cross(s: Setup, x: Sequence[Tensor], **options) -> Tensor:
        return call(*x, cross=True, **options)

    def packed(s: Setup, x: Sequence[Tensor], **options) -> Tensor:
        return call(*x, packed=images(s), rotary=ops.Rotary(images(s), s.head_dim), **options)

    return {
        name: Operator(alone),
        f'{name}, cross': Operator(cross, tokens='cross', timed=False),
        f'{name}, packed': Operator(packed, tokens='packed', timed=False),
    }


_elu1 = partial(ops.linear_attention, feature_map='elu+1')
OPERATORS: Dict[str, Operator] = {
    'linear': Operator(lambda s, x, **options: ops.linear_attention(*x, **options), features=True),
    **_family('rala', ops.rala_attention, rotary=True),
    'random-walk': _walk(None),
    'ripple': Operator(
        lambda s, x, **options: ops.ripple_attention(*x, hw_shape=s.hw_shape, **options),
        features=True,
        extra=_rings,
    ),
    **_family('mala', ops.mala_attention, rotary=True),
    'linear, learnt features': Operator(_run_learnt, extra=_learnt),
    **_family('linear, elu+1', _elu1, rotary=False),
    'random-walk, 1 step': _walk(1),
    'random-walk, 2 steps': _walk(2),
    'random-walk, 7 steps': _walk(7),
    'additive': Operator(
        lambda s, x, **options: ops.additive_attention(*x, **options),
        extra=lambda s: {name: s.randn(s.heads, s.head_dim) for name in ('w_q', 'w_k')},
        backends=('torch',),
    ),
}
TIMED = [name for name in OPERATORS if OPERATORS[name].timed]


@dataclass(frozen=True)
class Problem:
    """An operator with inputs, the same on every call.

    Attributes:
        leaves: inputs by name; all have gradients.
        mask: padding mask of the keys, bool (B, N), or None.
        grad: gradient of the output.
    """

    name: str
    setup: Setup
    leaves: Dict[str, Tensor]
    mask: Optional[Tensor]
    grad: Tensor

    @classmethod
    def of(cls, name: str, setup: Setup, padded: bool = False, flat: bool = False) -> 'Problem':
        """Build a problem with seeded inputs.

        Args:
            padded: images end in padding; of several images, the first is all padding.
            flat: use the gradient of a sum: one number, every stride 0.
        """
        operator = OPERATORS[name]
        setup = replace(setup, batch=1) if operator.tokens == 'packed' else setup
        torch.manual_seed(0)
        q, k, v = setup.features() if operator.features else setup.qkv()
        # Correlate values with keys, scaled per channel. Otherwise sums over many tokens cancel,
        # and the relative error of the rest means nothing.
        v.detach().add_(k.detach() * torch.linspace(0, 2, v.shape[-1]).to(v))
        extra = {key: setup.leaf(x) for key, x in operator.extra(setup).items()}
        grad = v.new_ones(()).expand(q.shape) if flat else setup.randn(*q.shape)
        count = setup.num_tokens
        if operator.tokens == 'cross':
            count = count // 2 + 1
            k, v = (setup.leaf(x[:, :, :count]) for x in (k, v))
        mask = None
        if padded and operator.tokens != 'packed':
            mask = torch.zeros(setup.batch, count, dtype=torch.bool, device=setup.device)
            mask[:, count // 2 + 1 :] = True
            mask[0] |= setup.batch > 1
        return cls(name, setup, {'q': q, 'k': k, 'v': v, **extra}, mask, grad)

    def run(self, backend: str) -> Tensor:
        """Return the output of a backend."""
        options = dict(key_padding_mask=self.mask, backend=backend)
        return OPERATORS[self.name].run(self.setup, tuple(self.leaves.values()), **options)

    def step(self, backend: str) -> Tuple[Tensor, ...]:
        """Return output and gradients of a backend."""
        out = self.run(backend)
        return (out.detach(), *torch.autograd.grad(out, [*self.leaves.values()], self.grad))

    def exact(self) -> Tuple[Tensor, ...]:
        """Return output and gradients of the torch form in float64.

        Tests compare it with the definitions of the package, which are N x N, too large here.
        """
        leaves = {name: self.setup.leaf(x.detach().double()) for name, x in self.leaves.items()}
        return replace(self, leaves=leaves, grad=self.grad.double()).step('torch')

    def of_head(self, i: int, got: Sequence[Tensor]) -> Tuple['Problem', List[Optional[Tensor]]]:
        """Return the problem of head i of image i and its part of ``got``, None for sums."""
        parts = {
            name: self.setup.leaf(x.detach()[i, None] if x.dim() < 4 else x[i, None][:, i, None])
            for name, x in self.leaves.items()
        }
        setup, grad = replace(self.setup, batch=1, heads=1), self.grad[i, None][:, i, None]
        taken = [x[i, None][:, i, None] if x.dim() == 4 else None for x in got]
        return Problem(self.name, setup, parts, None, grad), taken

    def verdict(
        self,
        got: Sequence[Optional[Tensor]],
        expected: Sequence[Tensor],
        dtype: Optional[torch.dtype] = None,
    ) -> Dict[str, object]:
        """Return relative errors, with those beyond the tolerances of a dtype under ``'wrong'``."""
        tolerances, norm = TOLERANCES[dtype or self.setup.dtype], self.grad.double().norm()
        row: Dict[str, object] = {}
        wrong = []
        for name, a, b in zip(('output', *(f'd{leaf}' for leaf in self.leaves)), got, expected):
            if a is None:
                continue
            error = difference(a, b)
            if self.setup.num_tokens == 1 and b.norm() <= 1e-3 * norm:
                # Of a single key some gradients vanish up to eps.
                error = float((a.double() - b).norm() / norm)
            leaf = self.leaves.get(name[1:])
            summed = not any(self.grad.stride()) or (leaf is not None and leaf.dim() < 4)
            limit = tolerances[0 if name == 'output' else 1 + summed]
            row[name] = float(f'{error:.1e}')
            if not error <= limit:
                wrong.append(f'{name} differs by {error:.1e}, more than {limit:.0e}')
        return dict(row, wrong='; '.join(wrong)) if wrong else row
