"""Portable forms in many chunks of tokens, and as plain operations, against the references."""

from contextlib import nullcontext

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from mmlinattn.ops.common import numerics
from tests.test_ops.operators import OPERATORS, random_tensors

HW, DIM, HEADS, BATCH = (10, 15), 8, 3, 2
TOKENS = HW[0] * HW[1]
every_operator = pytest.mark.parametrize('name', OPERATORS)


def run(name, *tensors, mask, backend):
    return OPERATORS[name][0](HW, *tensors, key_padding_mask=mask, backend=backend)


def leaves_of(name, width=DIM):
    widths = DIM, DIM, DIM if name == 'additive' else width
    q, k, v = (torch.randn(BATCH, HEADS, TOKENS, d, dtype=torch.float64) for d in widths)
    return [q, k, v, *random_tensors(OPERATORS[name][1], q)]


@pytest.fixture
def mask():
    mask = torch.zeros(BATCH, TOKENS, dtype=torch.bool)
    mask[0, 40:] = mask[1, :70] = True  # a chunk of padding only, at the end and at the start
    return mask


@every_operator
@pytest.mark.parametrize(
    'chunks, width, padding, watched',
    [(1, 3, True, False), (3, DIM, False, False), (3, 1, True, False), (3, 20, True, True)],
)
def test_chunks_make_no_difference(name, chunks, width, padding, watched, mask, monkeypatch):
    """In a dispatch mode the forward pass has one chunk of all tokens, the backward pass three."""
    monkeypatch.setattr(numerics, 'CPU_CHUNK', 2**20 if chunks == 1 else 1)
    leaves, mask = leaves_of(name, width), mask if padding else None
    assert len(numerics.token_chunks(leaves[0])) == chunks
    cotangent = torch.randn_like(leaves[2])
    results = []
    for backend in ('torch', 'reference'):
        inputs = [x.clone().requires_grad_() for x in leaves]
        with FlopCounterMode(display=False) if watched else nullcontext():
            out = run(name, *inputs, mask=mask, backend=backend)
        results.append([out, *torch.autograd.grad(out, inputs, cotangent)])
    for portable, reference in zip(*results):
        torch.testing.assert_close(portable, reference, rtol=1e-9, atol=1e-10)


@every_operator
def test_transforms_of_torch_func(name, mask):
    leaves = leaves_of(name)

    def loss(*inputs):
        return run(name, *inputs, mask=mask, backend='torch').square().sum()

    def expected(*inputs):
        return run(name, *inputs, mask=mask, backend='reference').square().sum()

    every = tuple(range(len(leaves)))
    grads = torch.func.grad(loss, argnums=every)(*leaves)
    for a, b in zip(grads, torch.func.grad(expected, argnums=every)(*leaves)):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    many = torch.stack([leaves[0], leaves[0] + 1, 2 * leaves[0]])
    one_by_one = torch.stack([loss(q, *leaves[1:]) for q in many])
    over = (0, *(None for _ in leaves[1:]))
    torch.testing.assert_close(torch.vmap(loss, over)(many, *leaves[1:]), one_by_one)


@pytest.mark.parametrize('name', [x for x in OPERATORS if 'nystrom' not in x and 'walk' not in x])
def test_a_backward_pass_under_autocast(name, mask, monkeypatch):
    """Between the anchors torch differentiates, whose products there follow autocast."""
    monkeypatch.setattr(numerics, 'CPU_CHUNK', 1)
    leaves = [x.float().requires_grad_() for x in leaves_of(name)]
    out = run(name, *leaves, mask=mask, backend='torch')
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
    out = run(name, *leaves, mask=None, backend='torch')
    grads = torch.autograd.grad(loss(out), leaves, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivatives.*backend='reference'"):
        sum(grad.square().sum() for grad in grads).backward()


@every_operator
def test_nothing_of_the_size_of_the_tokens_is_kept(name):
    """The backward pass keeps the inputs, and small tensors."""
    leaves = [x.requires_grad_() for x in leaves_of(name)]
    kept = {x.data_ptr() for x in leaves}
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        run(name, *leaves, mask=None, backend='torch')
    own = {t.data_ptr() for t in saved if t.numel() >= leaves[0].numel()} - kept
    # Features given to the operator are its inputs.
    assert len(own) == (2 if name in ('linear, identity', 'linear, means') else 0)


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
