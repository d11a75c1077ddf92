"""Test inputs of every operator, and errors relative to the exact results."""

from dataclasses import dataclass, replace
from typing import Callable, Dict, List, Optional, Sequence, Tuple

import torch
from torch import Tensor

from mmlinattn.ops import (
    Rotary,
    adaptive_features,
    additive_attention,
    linear_attention,
    local_gate,
    rala_attention,
    random_walk_attention,
    ripple_attention,
)

from ..cases import Setup
from ..cases.operators import DECAY, MAX_DISTANCE, NUM_ANCHORS
from ..measure import difference
from . import exact

# Relative errors of an output, of a gradient, and of the gradient of a sum: about four times those
# in Triton's interpreter. The exact results have the same rounded inputs. The gradient of a sum is
# smaller than the terms whose difference it is: float32 forms of 40,000 tokens had 3e-4.
TOLERANCES = {
    torch.float32: (1e-5, 2e-4, 2e-3),
    torch.float16: (1e-3, 4e-3, 8e-3),
    torch.bfloat16: (1e-2, 3e-2, 6e-2),
}
DTYPES = tuple(TOLERANCES)
FORMS = ('triton', 'torch')


@dataclass(frozen=True)
class Operator:
    """An operator of the package.

    Args:
        features: True if queries and keys are non-negative features.
        extra: returns the tensors with a gradient besides q, k and v, by name.
        run: computes the output from the tensors, a padding mask (B, N) or None, and a backend.
        exact: computes it from the tensors in float64 and ``keep``, (B, 1, N, 1).
        kernel: True if the operator has a Triton backend.
    """

    features: bool
    extra: Callable[[Setup], Dict[str, Tensor]]
    run: Callable[[Setup, Sequence[Tensor], Optional[Tensor], str], Tensor]
    exact: Callable[[Setup, Sequence[Tensor], Tensor], Tensor]
    kernel: bool = True


def _anchors(setup: Setup) -> Dict[str, Tensor]:
    count = min(NUM_ANCHORS, setup.head_dim)
    shape = setup.heads, count, setup.head_dim
    return {name: 0.1 * setup.randn(*shape) for name in ('anchors_q', 'anchors_k')}


def _scorers(setup: Setup) -> Dict[str, Tensor]:
    return {name: setup.randn(setup.heads, setup.head_dim) for name in ('w_q', 'w_k')}


def _rings(setup: Setup, count: int) -> Tensor:
    """Return random (B, heads, N, count), stored token by token as a projection stores it."""
    return setup.randn(setup.batch, setup.num_tokens, setup.heads, count).transpose(1, 2)


def _learnt(setup: Setup) -> Dict[str, Tensor]:
    """Return the parameters of one feature map per head.

    Features are about 3: near the edge of a ReLU, rounding decides if there is a gradient.
    """
    dim, heads = setup.head_dim, setup.heads
    weight = (2 * dim) ** -0.5 * setup.randn(heads, dim, 2 * dim)
    return {
        'frequencies': setup.randn(heads, dim, dim),
        'weight': weight / 2,
        'bias': 3 + 0.1 * setup.randn(heads, dim),
    }


def _learnt_linear(q, k, v, *learnt, mask: Optional[Tensor], form: str) -> Tensor:
    features = adaptive_features(q, k, *learnt, backend=form)
    return linear_attention(*features, v, key_padding_mask=mask, backend=form)


def _local(setup: Setup, x: Sequence[Tensor], mask: Optional[Tensor], form: str) -> Tensor:
    """Apply the local gate with q as the output of an attention and k as the gate."""
    out, gate, v = (t.transpose(1, 2).flatten(2) for t in x[:3])
    v = v if mask is None else v.masked_fill(mask[..., None], 0)
    weight = x[3].flatten(0, 1).unflatten(1, (1, 5, 5))
    out = local_gate(out, v, gate, weight, None, hw_shape=setup.hw_shape, backend=form)
    return out.unflatten(2, x[0].shape[1::2]).transpose(1, 2)


OPERATORS: Dict[str, Operator] = {
    'linear': Operator(
        True,
        lambda setup: {},
        lambda s, x, mask, form: linear_attention(*x, key_padding_mask=mask, backend=form),
        lambda s, x, keep: exact.linear(*x, keep),
    ),
    'rala': Operator(
        False,
        lambda setup: {},
        lambda s, x, mask, form: rala_attention(
            *x, rotary=Rotary(s.hw_shape, s.head_dim), key_padding_mask=mask, backend=form
        ),
        lambda s, x, keep: exact.rala(*x, keep, s.hw_shape),
    ),
    'random-walk': Operator(
        False,
        _anchors,
        lambda s, x, mask, form: random_walk_attention(
            *x, decay=DECAY, key_padding_mask=mask, backend=form
        ),
        lambda s, x, keep: exact.random_walk(*x, keep, DECAY),
    ),
    'ripple': Operator(
        True,
        lambda setup: {'weights': _rings(setup, MAX_DISTANCE + 1).softmax(-1)},
        lambda s, x, mask, form: ripple_attention(
            *x, hw_shape=s.hw_shape, key_padding_mask=mask, backend=form
        ),
        lambda s, x, keep: exact.ripple(*x, keep, s.hw_shape),
    ),
    'ripple, logits': Operator(
        True,
        lambda setup: {'logits': _rings(setup, MAX_DISTANCE)},
        lambda s, x, mask, form: ripple_attention(
            *x, hw_shape=s.hw_shape, stick='offset', key_padding_mask=mask, backend=form
        ),
        lambda s, x, keep: exact.ripple(*x[:3], exact.stick_weights(x[3]), keep, s.hw_shape),
    ),
    'linear, learnt features': Operator(
        False,
        _learnt,
        lambda s, x, mask, form: _learnt_linear(*x, mask=mask, form=form),
        lambda s, x, keep: exact.linear(*exact.learnt(*x[:2], *x[3:]), x[2], keep),
    ),
    'local position, gate': Operator(
        False,
        lambda setup: {'weight': 0.2 * setup.randn(setup.heads, setup.head_dim, 25)},
        _local,
        lambda s, x, keep: exact.local_gate(*x, keep, s.hw_shape),
    ),
    'additive': Operator(
        False,
        _scorers,
        lambda s, x, mask, form: additive_attention(*x, key_padding_mask=mask, backend=form),
        lambda s, x, keep: exact.additive(*x, keep),
        kernel=False,
    ),
}


@dataclass(frozen=True)
class Problem:
    """An operator with inputs, the same on every call.

    Attributes:
        leaves: inputs by name; all have gradients.
        mask: (B, N) bool, or None.
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
        torch.manual_seed(0)
        q, k, v = setup.features() if operator.features else setup.qkv()
        # Correlate values with keys, scaled per channel. Otherwise sums over many tokens cancel,
        # and the relative error of the rest means nothing.
        v.detach().add_(k.detach() * torch.linspace(0, 2, v.shape[-1]).to(v))
        extra = {key: setup.leaf(x) for key, x in operator.extra(setup).items()}
        mask = None
        if padded:
            mask = torch.zeros(setup.batch, setup.num_tokens, dtype=torch.bool, device=setup.device)
            mask[:, setup.num_tokens // 2 + 1 :] = True
            mask[0] |= setup.batch > 1
        grad = torch.ones((), dtype=v.dtype, device=v.device).expand(v.shape)
        if not flat:
            grad = setup.randn(*v.shape)
        return cls(name, setup, {'q': q, 'k': k, 'v': v, **extra}, mask, grad)

    def run(self, form: str) -> Tensor:
        """Return the output of a backend."""
        leaves = tuple(self.leaves.values())
        return OPERATORS[self.name].run(self.setup, leaves, self.mask, form)

    def step(self, form: str) -> Tuple[Tensor, ...]:
        """Return output and gradients of a backend."""
        out = self.run(form)
        return (out.detach(), *torch.autograd.grad(out, [*self.leaves.values()], self.grad))

    def exact(self) -> Tuple[Tensor, ...]:
        """Return output and gradients in float64."""
        leaves = [x.detach().double().requires_grad_() for x in self.leaves.values()]
        keep = leaves[0].new_ones(self.setup.batch, 1, self.setup.num_tokens, 1)
        if self.mask is not None:
            keep = (~self.mask).double()[:, None, :, None]
        out = OPERATORS[self.name].exact(self.setup, leaves, keep)
        return (out.detach(), *torch.autograd.grad(out, leaves, self.grad.double()))

    def of_head(
        self, image: int, head: int, got: Sequence[Tensor]
    ) -> Tuple['Problem', List[Optional[Tensor]]]:
        """Return the problem of one head of one image, without padding, and its part of ``got``.

        Gradients that are sums over images are None.
        """

        def part(x: Tensor) -> Tensor:
            x = x.detach()[head, None] if x.dim() < 4 else x.detach()[image, None][:, head, None]
            return x.requires_grad_()

        leaves = {name: part(x) for name, x in self.leaves.items()}
        setup = replace(self.setup, batch=1, heads=1)
        taken = [part(x) if x.dim() == 4 else None for x in got]
        return Problem(self.name, setup, leaves, None, part(self.grad).detach()), taken

    def errors(
        self, got: Sequence[Optional[Tensor]], expected: Sequence[Tensor]
    ) -> Dict[str, float]:
        """Return the relative errors of the output and of each gradient that is not None.

        With a single key some gradients vanish up to ``eps``. Their errors are relative to the
        output gradient.
        """
        names = ('output', *(f'd{name}' for name in self.leaves))
        scale = 1e-3 * self.grad.double().norm() if self.setup.num_tokens == 1 else -1
        found = {}
        for name, a, b in zip(names, got, expected):
            if a is None:
                continue
            if name != 'output' and b.norm() <= scale:
                found[name] = float((a.double() - b).norm() / self.grad.double().norm())
            else:
                found[name] = difference(a, b)
        return found

    def verdict(
        self,
        got: Sequence[Optional[Tensor]],
        expected: Sequence[Tensor],
        digits_of: Optional[torch.dtype] = None,
    ) -> Dict[str, object]:
        """Return a row of errors, with those that are too large or NaN under ``'wrong'``.

        Args:
            digits_of: dtype whose tolerances apply; default: the dtype of the inputs.
        """
        errors = self.errors(got, expected)
        tolerances = TOLERANCES[digits_of or self.setup.dtype]
        flat = not any(self.grad.stride())
        wrong = []
        for name, error in errors.items():
            limit = tolerances[0] if name == 'output' else tolerances[1 + flat]
            if not error <= limit:
                wrong.append(f'{name} differs by {error:.1e}, more than {limit:.0e}')
        row: Dict[str, object] = {name: float(f'{error:.1e}') for name, error in errors.items()}
        return dict(row, wrong='; '.join(wrong)) if wrong else row


def forms(name: str) -> Tuple[str, ...]:
    """Return the backends of an operator."""
    return FORMS if OPERATORS[name].kernel else FORMS[1:]
