"""Every operator over shapes, masks, strides, types and extreme values, against its formula.

The formulas are written out in float64 for one image of which the padded keys are cut away. How far
an operator may be off follows from the formula: as far as its value moves when the inputs move by a
few units of the precision that the operator promises to compute in.
"""

from typing import Callable, Dict, List, NamedTuple, Optional

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from mmlinattn.ops import (
    Rotary,
    additive_attention,
    linear_attention,
    mala_attention,
    nystrom_attention,
    rala_attention,
    random_walk_attention,
    ripple_attention,
)
from tests.sizes import LONG, size

pytestmark = pytest.mark.long
tried = settings(
    max_examples=size(50, 1000),
    deadline=None,
    derandomize=not LONG,
    print_blob=True,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)

# Inputs move by this many units of the precision; the value by that many times of what was seen.
UNITS, MOVES, SLACK = 8, 4, 16


def features(name: str, x: Tensor) -> Tensor:
    if name == 'elu+1':
        # Not clamp, whose derivative at its bound is 0 from torch 2.15 on.
        return torch.where(x > 0, x + 1, torch.where(x > 0, 0, x).exp())
    if name == 'relu':
        return x.relu()  # whose derivative at 0 is 0
    return x.softmax(-1) if name == 'softmax' else x


def turned(x: Tensor, rotary: Optional[Rotary]) -> Tensor:
    """2D rotary position of x (heads, N, d) by complex numbers."""
    if rotary is None:
        return x
    (height, width), dim = rotary.hw_shape, x.shape[-1]
    speeds = rotary.base ** -torch.linspace(0, 1, dim // 4, dtype=x.dtype)
    rows = torch.arange(height, dtype=x.dtype).repeat_interleave(width)[:, None] * speeds
    columns = torch.arange(width, dtype=x.dtype).repeat(height)[:, None] * speeds
    angles = torch.cat([rows, columns], 1)
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)


# Each takes q, k, v (heads, N, d), further tensors of the image, which keys are real (N), options.


def linear(q, k, v, real, feature_map, rotary, mean_normaliser, eps=1e-6):
    q, k = features(feature_map, q), features(feature_map, k)
    eps = eps * int(real.sum()) if mean_normaliser else eps
    norm = (q @ k[:, real].mT).sum(-1, keepdim=True) + eps
    return turned(q, rotary) @ turned(k, rotary)[:, real].mT @ v[:, real] / norm


def rala(q, k, v, real, feature_map, rotary, eps=1e-6):
    q, k = features(feature_map, q), features(feature_map, k)
    mean = q[:, real].mean(1, keepdim=True)
    a = (mean @ k[:, real].mT * q.shape[-1] ** -0.5).softmax(-1)  # [heads, 1, keys]
    norm = (q @ k[:, real].mT * a).sum(-1, keepdim=True) + eps
    return (turned(q, rotary) @ turned(k, rotary)[:, real].mT * a) @ v[:, real] / norm


def mala(q, k, v, real, feature_map, rotary, eps=1e-6):
    q, k, scale = features(feature_map, q), features(feature_map, k), q.shape[-1] ** -0.5
    z = scale * (q @ k[:, real].mT).mean(-1, keepdim=True)
    kernel = (1 + 1 / (z + eps)) * scale * (turned(q, rotary) @ turned(k, rotary)[:, real].mT) - z
    return kernel @ v[:, real] / real.sum()


def walk(q, k, v, anchors_q, anchors_k, real, decay, steps):
    out_of = (q @ anchors_k.mT).softmax(-1)
    onto = (anchors_q @ k[:, real].mT).softmax(-1)
    transition = q.new_zeros(q.shape[0], q.shape[1], q.shape[1])
    transition[:, :, real] = out_of @ onto
    if steps is None:
        identity = torch.eye(q.shape[1], dtype=q.dtype)
        return (1 - decay) * torch.linalg.solve(identity - decay * transition, transition @ v)
    powers = [torch.linalg.matrix_power(transition, i + 1) @ v * decay**i for i in range(steps)]
    return sum(powers) * (1 - decay) / (1 - decay**steps)


def nystrom(q, k, v, landmarks_q, landmarks_k, real, iterations):
    scale = q.shape[-1] ** -0.5
    between = (scale * landmarks_q @ landmarks_k.mT).softmax(-1)
    norms = between.sum(-2).amax(-1) * between.sum(-1).amax(-1)
    z, one = between.mT / norms[:, None, None], torch.eye(between.shape[-1], dtype=q.dtype)
    for _ in range(iterations):
        xz = between @ z
        z = 0.25 * z @ (13 * one - xz @ (15 * one - xz @ (7 * one - xz)))
    onto = (scale * landmarks_q @ k[:, real].mT).softmax(-1)
    return (scale * q @ landmarks_k.mT).softmax(-1) @ z @ onto @ v[:, real]


def additive(q, k, v, w_q, w_k, real):
    def pool(x, w):
        scores = torch.einsum('hnd,hd->hn', x[:, real], w) * x.shape[-1] ** -0.5
        return torch.einsum('hn,hnd->hd', scores.softmax(-1), x[:, real])[:, None]

    return pool(pool(q, w_q) * k, w_k) * v


def ripple(q, k, v, weights, real, hw_shape, groups, eps=1e-6):
    place = torch.cartesian_prod(*map(torch.arange, hw_shape))
    distance = (place[:, None] - place).abs().amax(-1)
    if groups == 'log':  # 0, 1, 2 and 3, 4 to 7, ...
        distance = torch.where(distance > 0, distance.double().log2().floor() + 1, 0).long()
    group = distance.clamp(max=weights.shape[-1] - 1).expand(q.shape[0], -1, -1)
    kernel = (weights.gather(-1, group) * (q @ k.mT))[..., real]
    return kernel @ v[:, real] / (kernel.sum(-1, keepdim=True) + eps)


def additive_of_one(q, k, v, w_q, w_k, **options):
    """The operator with weights (B, heads, d), all images of which are the same."""
    weights = [w[0] if len(w) else w.new_ones(w.shape[1:]) for w in (w_q, w_k)]
    return additive_attention(q, k, v, *weights, **options)


class Case(NamedTuple):
    """A call of an operator, and what to compare it with."""

    operator: Callable
    formula: Callable
    tensors: List[Tensor]  # q, k, v, then what else is of each image
    mask: Optional[Tensor]
    options: dict  # of both
    call: dict  # of the operator alone

    def __repr__(self) -> str:
        q, _, v, *more = self.tensors
        shapes = [tuple(x.shape) for x in (q, v, *more)]
        mask = None if self.mask is None else self.mask.int().tolist()
        return f'{q.dtype} {shapes} {q.stride()} mask={mask} {self.options} {self.call}'

    def run(self, tensors: List[Tensor]) -> Tensor:
        return self.operator(*tensors, key_padding_mask=self.mask, **self.options, **self.call)

    def expected(self, tensors: List[Tensor]) -> Tensor:
        """In float64, image by image."""
        rows = []
        for i, image in enumerate(zip(*tensors)):
            real = torch.ones(image[0].shape[1], dtype=torch.bool)
            real = real if self.mask is None else ~self.mask[i]
            zero = image[2] * 0  # keeps the graph
            rows.append(self.formula(*image, real, **self.options) if real.any() else zero)
        return torch.stack(rows) if rows else tensors[2] * 0


def numbers(kind: str, shape, dtype: torch.dtype, positive: bool) -> Tensor:
    x = torch.randn(shape, dtype=torch.float64)
    if kind == 'large':
        x = 1e4 * x.clamp(-1, 1)
    elif kind == 'denormal':
        x = x * 20 * torch.finfo(dtype).tiny * torch.finfo(dtype).eps
    elif kind == 'equal':
        x = torch.full_like(x, 0.7)
    elif kind == 'one hot':
        x = torch.zeros_like(x).view(-1)
        x[torch.randint(x.numel(), (1,)) if x.numel() else []] = 3.0
        x = x.view(shape)
    elif kind == 'zero':
        x = torch.zeros_like(x)
    return (x.abs() if positive else x).to(dtype)


def strided(x: Tensor, how: str) -> Tensor:
    """The same numbers (but for 'expanded') with other strides; x is (B, heads, N, d)."""
    if how == 'transposed':
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if how == 'channels first':
        return x.mT.contiguous().mT
    if how == 'expanded' and x.shape[1]:
        return x[:, :1].expand(x.shape)
    if how == 'offset':
        room = x.new_full((x.shape[0], x.shape[1], x.shape[2] + 1, 2 * x.shape[3] + 3), 5.0)
        view = room[:, :, 1:, 3::2]
        view.copy_(x)
        return view
    return x


STRIDES = ('plain', 'transposed', 'channels first', 'expanded', 'offset')
VALUES = ('normal', 'normal', 'large', 'denormal', 'equal', 'one hot', 'zero')
MASKS = ('no mask', 'no padding', 'all padding', 'one image of padding', 'some padding')
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


@st.composite
def cases(draw, name: str) -> Case:
    torch.manual_seed(draw(st.integers(0, 2**31)))

    def pick(*of):
        return draw(st.sampled_from(of))

    batch, heads = pick(2, 1, 3, 0), pick(2, 1, 3)
    hw_shape = pick((3, 4), (1, 1), (1, 5), (7, 1), (2, 2), (9, 10))
    dim, dim_v = pick(4, 1, 3, 8), pick(4, 1, 5)
    dtype, kind, how = pick(*DTYPES), pick(*VALUES), pick(*STRIDES)
    tokens = hw_shape[0] * hw_shape[1]
    mask = torch.zeros(batch, tokens, dtype=torch.bool)
    masking = pick(*MASKS)
    if masking == 'all padding':
        mask[:] = True
    elif masking == 'one image of padding':
        mask[:1] = True
    elif masking == 'some padding':
        mask = torch.rand(batch, tokens) < 0.4
    mask = None if masking == 'no mask' else mask

    options, call, more = {}, dict(backend=pick('auto', 'auto', 'reference')), []
    if name in ('linear', 'rala', 'mala'):
        maps = ('elu+1', 'relu', 'softmax')
        options['feature_map'] = pick(*maps)
        options['rotary'] = pick(None, Rotary(hw_shape, dim) if dim % 4 == 0 else None)
        if name == 'linear':
            options.update(mean_normaliser=pick(False, True), eps=pick(1e-6, 0.3))
    elif name == 'walk':
        options.update(decay=pick(0.1, 0.5, 0.9), steps=pick(None, 1, 3))
    elif name == 'nystrom':
        options['iterations'] = pick(6, 1)
    elif name == 'additive':
        dim_v = dim
    elif name == 'ripple':
        options['groups'] = pick('chebyshev', 'log')
        algorithms = ('sat', *(['tile'] if options['groups'] == 'chebyshev' else []))
        call['backend'] = pick('auto', 'reference', *algorithms)
        options['hw_shape'] = hw_shape
        more = [numbers('normal', (batch, heads, tokens, pick(3, 1, 2, 7)), dtype, True)]
    positive = name == 'ripple'
    q, k = (numbers(kind, (batch, heads, tokens, dim), dtype, positive) for _ in range(2))
    v = numbers(kind, (batch, heads, tokens, dim_v), dtype, False)
    if name in ('walk', 'nystrom', 'additive'):
        anchors = (heads, dim) if name == 'additive' else (heads, pick(3, 1, 8), dim)
        more = [numbers(pick('normal', kind), anchors, dtype, False) for _ in range(2)]
        more = [x.expand(batch, *x.shape) for x in more]
    tensors = [*(strided(x, how) for x in (q, k, v)), *more]
    operator, formula = OPERATORS[name]
    operator = additive_of_one if name == 'additive' else operator
    if call['backend'] == 'reference' and dtype not in (torch.float32, torch.float64):
        call['backend'] = 'auto'  # the definition computes in the type of its inputs
    return Case(operator, formula, tensors, mask, options, call)


OPERATORS: Dict[str, tuple] = dict(
    linear=(linear_attention, linear),
    rala=(rala_attention, rala),
    mala=(mala_attention, mala),
    walk=(random_walk_attention, walk),
    nystrom=(nystrom_attention, nystrom),
    additive=(additive_attention, additive),
    ripple=(ripple_attention, ripple),
)


def results(function: Callable, tensors: List[Tensor], cotangent: Tensor) -> List[Tensor]:
    """What it returns, and the gradients of q, k and v."""
    leaves = [x.detach().requires_grad_() for x in tensors]
    out = function(leaves)
    assert out.shape == cotangent.shape
    grads = torch.autograd.grad(out, leaves[:3], cotangent.to(out.dtype), allow_unused=True)
    grads = [torch.zeros_like(x) if g is None else g for g, x in zip(grads, leaves)]
    return [out.detach(), *grads]


def moved(tensors: List[Tensor], by: float) -> List[Tensor]:
    return [x * (1 + by * (2 * torch.randint_like(x, 2) - 1)) for x in tensors]


def check(case: Case) -> None:
    dtype = case.tensors[0].dtype
    precision = torch.finfo(torch.promote_types(dtype, torch.float32)).eps
    cotangent = torch.randn(case.tensors[2].shape, dtype=torch.float64)
    found = results(case.run, case.tensors, cotangent.to(dtype))
    exact = [x.double() for x in case.tensors]
    cotangent = cotangent.to(dtype).double()
    expected = results(case.expected, exact, cotangent)
    around = [
        results(case.expected, moved(exact, UNITS * precision), cotangent) for _ in range(MOVES)
    ]
    limit = torch.finfo(dtype).max
    # Gradients are differences of terms of this size.
    terms = cotangent.abs().amax().item() if cotangent.numel() else 0.0
    for x in exact[:3]:
        terms *= max(x.abs().amax().item(), 1.0) if x.numel() else 0.0
    relu = case.options.get('feature_map') == 'relu'
    if case.formula is ripple or relu:
        terms *= 1e6  # all similarities may be 0, and the normaliser eps
    large = bool(exact[0].numel()) and exact[0].abs().amax().item() > 100
    for name, i in zip(('out', 'dq', 'dk', 'dv'), range(4)):
        ours, theirs = found[i], expected[i]
        assert ours.dtype == dtype, name
        assert not ours.isnan().any(), f'{name} has NaN'
        turns = case.options.get('rotary') and (large or relu)
        if turns or (large and (i or case.formula is mala)):
            # Gradients are differences of terms of 1e12 and more, of which no digit is left, and so
            # are outputs of MALA. Turned features may have any product, where those that are not
            # turned have none.
            continue
        spread = torch.stack([(x[i] - theirs).abs() for x in around]).amax(0)
        # Moves of many tokens cancel, roundings of one sum need not.
        spread = SLACK * spread + UNITS * precision * theirs.abs()
        # What is summed in one go shares its error: of a head of an image.
        if spread.numel():
            spread = spread.amax((-1, -2), keepdim=True).expand_as(spread)
        tolerance = spread + 2 * torch.finfo(dtype).eps * theirs.abs()
        tolerance = tolerance + torch.finfo(dtype).tiny + (i > 0) * UNITS**2 * precision * terms
        error = (ours.double().clamp(-limit, limit) - theirs.clamp(-limit, limit)).abs()
        worst = (error - tolerance).amax().item() if error.numel() else 0
        assert worst <= 0, f'{name} is off by {worst:.3g} more than may be'


@pytest.mark.parametrize('name', OPERATORS)
def test_equals_its_formula(name):
    @tried
    @given(cases(name))
    def run(case):
        check(case)

    run()


@pytest.mark.parametrize('name', OPERATORS)
def test_what_is_not_finite_stays_in_its_image(name):
    @tried
    @given(cases(name), st.sampled_from((float('nan'), float('inf'), float('-inf'))), st.data())
    def run(case, poison, data):
        batch = case.tensors[0].shape[0]
        if batch < 2 or (name == 'ripple' and case.call['backend'] == 'reference'):
            return  # the definition looks at all values for negative ones
        image, token = data.draw(st.integers(0, batch - 1)), data.draw(st.integers(0, 99))
        which = data.draw(st.sampled_from((0, 1, 2)))
        tensors = [x.clone() for x in case.tensors]
        tensors[which][image, :, token % tensors[0].shape[2], -1] = poison
        others = [i for i in range(batch) if i != image]
        cotangent = torch.randn(case.tensors[2].shape, dtype=case.tensors[2].dtype)
        clean = results(case.run, [x.clone() for x in case.tensors], cotangent)
        dirty = results(case.run, tensors, cotangent)
        for part, a, b in zip(('out', 'dq', 'dk', 'dv'), clean, dirty):
            torch.testing.assert_close(b[others], a[others], rtol=0, atol=0, msg=part)

    run()


@pytest.mark.parametrize('name', OPERATORS)
def test_what_stands_in_the_padding_is_not_read(name):
    @tried
    @given(cases(name), st.sampled_from((1e4, -1e4, 6e4)), st.data())
    def run(case, poison, data):
        if case.mask is None or (name == 'ripple' and case.call['backend'] == 'reference'):
            return
        which = data.draw(st.sampled_from((1, 2)))
        tensors = [x.clone() for x in case.tensors]
        poison = abs(poison) if name == 'ripple' else poison
        tensors[which].masked_fill_(case.mask[:, None, :, None], poison)
        real = ~case.mask[:, None, :, None]
        cotangent = torch.randn(case.tensors[2].shape, dtype=case.tensors[2].dtype).where(real, 0)
        clean = results(case.run, [x.clone() for x in case.tensors], cotangent)
        dirty = results(case.run, tensors, cotangent)
        for part, a, b in zip(('out', 'dq', 'dk', 'dv'), clean, dirty):
            torch.testing.assert_close(b.where(real, 0), a.where(real, 0), rtol=0, atol=0, msg=part)

    run()
