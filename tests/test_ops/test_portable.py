"""Portable forms in many chunks of tokens, and as plain operations, against the references."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from mmlinattn.ops import (
    Rotary,
    additive_attention,
    linear_attention,
    mala_attention,
    nystrom_attention,
    rala_attention,
    random_walk_attention,
)
from mmlinattn.ops.common import numerics

HW, DIM, HEADS, BATCH = (10, 15), 8, 3, 2
TOKENS = HW[0] * HW[1]


def weights(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def rala(**options):
    def run(q, k, v, *rest, mask, backend):
        rotary = Rotary(HW, DIM)
        given = dict(options, token_weights=rest[0]) if rest else options
        return rala_attention(
            q, k, v, rotary=rotary, key_padding_mask=mask, backend=backend, **given
        )

    return run


def mala(q, k, v, mask, backend):
    return mala_attention(q, k, v, rotary=Rotary(HW, DIM), key_padding_mask=mask, backend=backend)


def linear(feature_map, rotary=None):
    def run(q, k, v, mask, backend):
        # Far from 0, where the normaliser of signed features is.
        q, k = (q.exp(), k.exp()) if feature_map == 'identity' else (q, k)
        return linear_attention(
            q, k, v, key_padding_mask=mask, eps=0.1, feature_map=feature_map, rotary=rotary,
            backend=backend,
        )  # fmt: skip

    return run


def additive(q, k, v, w_q, w_k, mask, backend):
    return additive_attention(q, k, v, w_q, w_k, key_padding_mask=mask, backend=backend)


def nystrom(q, k, v, *landmarks, mask, backend):
    return nystrom_attention(q, k, v, *landmarks, key_padding_mask=mask, backend=backend)


def walk(q, k, v, anchors_q, anchors_k, mask, backend):
    return random_walk_attention(
        q, k, v, anchors_q, anchors_k, decay=0.4, key_padding_mask=mask, backend=backend
    )


# Operator, shapes of what it takes besides q, k and v.
OPERATORS = {
    'linear': (linear('identity'), ()),
    'linear, elu+1': (linear('elu+1'), ()),
    'linear, relu': (linear('relu'), ()),
    'linear, softmax': (linear('softmax'), ()),
    'linear, rotary': (linear('elu+1', Rotary(HW, DIM)), ()),
    'nystrom': (nystrom, ((HEADS, 5, DIM), (BATCH, HEADS, 5, DIM))),
    'rala': (rala(), ()),
    'rala, relu': (rala(feature_map='relu'), ()),
    'rala, softmax': (rala(feature_map='softmax'), ()),
    'rala, given weights': (rala(), ((HEADS, TOKENS),)),
    'mala': (mala, ()),
    'additive': (additive, ((HEADS, DIM), (HEADS, DIM))),
    'random walk': (walk, ((HEADS, 5, DIM), (HEADS, 5, DIM))),
}
every_operator = pytest.mark.parametrize('name', OPERATORS)


def leaves_of(name, batch=BATCH):
    qkv = weights(3, batch, HEADS, TOKENS, DIM).unbind()
    return [*qkv, *(weights(*shape).abs() for shape in OPERATORS[name][1])]


@pytest.fixture
def mask():
    mask = torch.zeros(BATCH, TOKENS, dtype=torch.bool)
    mask[0, 40:] = mask[1, :70] = True  # a chunk of padding only, at the end and at the start
    return mask


@every_operator
@pytest.mark.parametrize('padding', [False, True])
def test_chunks_make_no_difference(name, padding, mask, monkeypatch):
    monkeypatch.setattr(numerics, 'CPU_CHUNK', 1)
    leaves, mask = leaves_of(name), mask if padding else None
    assert len(numerics.token_chunks(leaves[0])) == 3
    cotangent = torch.randn_like(leaves[0])
    results = []
    for backend in ('torch', 'reference'):
        inputs = [x.clone().requires_grad_() for x in leaves]
        out = OPERATORS[name][0](*inputs, mask=mask, backend=backend)
        results.append([out, *torch.autograd.grad(out, inputs, cotangent)])
    for portable, reference in zip(*results):
        torch.testing.assert_close(portable, reference, rtol=1e-9, atol=1e-10)


@every_operator
def test_a_dispatch_mode_of_the_forward_pass_alone(name, mask, monkeypatch):
    """There it makes a single chunk of all tokens, in the backward pass there are three."""
    monkeypatch.setattr(numerics, 'CPU_CHUNK', 1)
    leaves = leaves_of(name)
    cotangent = torch.randn_like(leaves[0])
    results = []
    for backend in ('torch', 'reference'):
        inputs = [x.clone().requires_grad_() for x in leaves]
        with FlopCounterMode(display=False):
            out = OPERATORS[name][0](*inputs, mask=mask, backend=backend)
        results.append([out, *torch.autograd.grad(out, inputs, cotangent)])
    for portable, reference in zip(*results):
        torch.testing.assert_close(portable, reference, rtol=1e-9, atol=1e-10)


@every_operator
def test_transforms_of_torch_func(name, mask):
    run, _ = OPERATORS[name]
    leaves = leaves_of(name)

    def loss(*inputs):
        return run(*inputs, mask=mask, backend='torch').square().sum()

    def expected(*inputs):
        return run(*inputs, mask=mask, backend='reference').square().sum()

    every = tuple(range(len(leaves)))
    grads = torch.func.grad(loss, argnums=every)(*leaves)
    for a, b in zip(grads, torch.func.grad(expected, argnums=every)(*leaves)):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    many = torch.stack([leaves[0], leaves[0] + 1, 2 * leaves[0]])
    one_by_one = torch.stack([loss(q, *leaves[1:]) for q in many])
    over = (0, *(None for _ in leaves[1:]))
    torch.testing.assert_close(torch.vmap(loss, over)(many, *leaves[1:]), one_by_one)


@every_operator
@pytest.mark.parametrize('chunk', [1, numerics.CPU_CHUNK])
@pytest.mark.parametrize('dtype, tolerance', [(torch.bfloat16, 1e-2), (torch.float16, 2e-3)])
def test_half_types(name, dtype, tolerance, chunk, mask, monkeypatch):
    monkeypatch.setattr(numerics, 'CPU_CHUNK', chunk)  # many chunks, and one
    leaves = [x.to(dtype) for x in leaves_of(name)]
    cotangent = torch.randn_like(leaves[0])
    results = []
    for backend, kind in (('torch', dtype), ('reference', torch.float64)):
        inputs = [x.to(kind).requires_grad_() for x in leaves]
        out = OPERATORS[name][0](*inputs, mask=mask, backend=backend)
        assert out.dtype == kind
        results.append([out, *torch.autograd.grad(out, inputs, cotangent.to(kind))])
    for portable, reference in zip(*results):
        assert (portable.double() - reference).norm() <= tolerance * reference.norm()


@pytest.mark.parametrize('name', [x for x in OPERATORS if x not in ('nystrom', 'random walk')])
def test_a_backward_pass_under_autocast(name, mask, monkeypatch):
    """Between the anchors torch differentiates, whose products there follow autocast."""
    monkeypatch.setattr(numerics, 'CPU_CHUNK', 1)
    leaves = [x.float().requires_grad_() for x in leaves_of(name)]
    out = OPERATORS[name][0](*leaves, mask=mask, backend='torch')
    cotangent = torch.randn_like(out)
    grads = []
    for enabled in (False, True):
        with torch.autocast('cpu', torch.bfloat16, enabled=enabled):
            grads.append(torch.autograd.grad(out, leaves, cotangent, retain_graph=True))
    torch.testing.assert_close(*grads)


def test_tokens_are_one_piece_where_operations_are_watched(monkeypatch):
    monkeypatch.setattr(numerics, 'CPU_CHUNK', 1)
    x = torch.zeros(1, 1, 1000, 8)
    assert len(numerics.token_chunks(x)) > 1
    with FlopCounterMode(display=False):
        assert numerics.token_chunks(x) == [slice(None)]


@every_operator
@pytest.mark.parametrize('loss', [lambda out: out.sum(), lambda out: out.square().sum()])
def test_second_derivatives_are_refused(name, loss, monkeypatch):
    """Sums that the backward pass reads are constants to autograd: it would be silently wrong."""
    monkeypatch.setattr(numerics, 'CPU_CHUNK', 1)
    leaves = [x.requires_grad_() for x in leaves_of(name)]
    out = OPERATORS[name][0](*leaves, mask=None, backend='torch')
    grads = torch.autograd.grad(loss(out), leaves, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivatives.*backend='reference'"):
        sum(grad.square().sum() for grad in grads).backward()


@every_operator
def test_nothing_of_the_size_of_the_tokens_is_kept(name):
    """The backward pass keeps the inputs, and small tensors."""
    run, _ = OPERATORS[name]
    leaves = [x.requires_grad_() for x in leaves_of(name)]
    kept = {x.data_ptr() for x in leaves}
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        run(*leaves, mask=None, backend='torch')
    own = {t.data_ptr() for t in saved if t.numel() >= leaves[0].numel()} - kept
    # Features given to the operator are its inputs.
    assert len(own) == (2 if name == 'linear' else 0)


@pytest.mark.filterwarnings('ignore::torch.jit.TracerWarning')
def test_exports_are_told_from_compilers():
    class Module(torch.nn.Module):
        def forward(self, x):
            return x + (1 if numerics.is_exporting() else 0)

    module, x = Module(), torch.zeros(2)
    compiled = torch.compile(module, backend='eager', fullgraph=True)
    assert module(x).sum() == compiled(x).sum() == 0
    traced = torch.jit.trace(module, (x,), check_trace=False)
    assert torch.equal(traced(x), x + 1)
    for strict in (False, True):
        exported = torch.export.export(module, (x,), strict=strict).module()
        # Before torch 2.7 nothing tells strict=True from torch.compile.
        told = hasattr(torch.compiler, 'is_exporting') or not strict
        assert torch.equal(exported(x), x + int(told)), strict
