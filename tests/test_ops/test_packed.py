"""Packed images: operators against each image alone."""

import pytest
import torch

from mmlinattn.ops import (
    PackedShapes,
    Rotary,
    linear_attention,
    mala_attention,
    rala_attention,
)

SHAPES = [(3, 5), (1, 1), (4, 2), (5, 3)]
OPERATORS = dict(linear=linear_attention, rala=rala_attention, mala=mala_attention)


def one_by_one(name, tensors, shapes, extra=0, rotary=False, **options):
    """Compute each image alone."""
    outs, packed = [], PackedShapes(shapes, extra)
    for hw_shape, *image in zip(shapes, *(packed.split(x, 2) for x in tensors)):
        position = Rotary(hw_shape, image[0].shape[-1], num_extra_tokens=extra) if rotary else None
        outs.append(OPERATORS[name](*image, feature_map='elu+1', rotary=position, **options))
    return torch.cat(outs, 2)


@pytest.mark.parametrize('backend', ['reference', 'torch'])
@pytest.mark.parametrize('extra, rotary', [(0, True), (2, True), (1, False)])
@pytest.mark.parametrize('name', OPERATORS)
def test_images_are_as_alone(name, extra, rotary, backend):
    packed = PackedShapes(SHAPES, extra)
    q, k, v = torch.randn(3, 1, 2, packed.num_tokens, 8, dtype=torch.float64).requires_grad_()
    out = OPERATORS[name](
        q, k, v, feature_map='elu+1', rotary=Rotary(packed, 8) if rotary else None, packed=packed,
        backend=backend,
    )  # fmt: skip
    expected = one_by_one(name, (q, k, v), SHAPES, extra, rotary, backend='reference')
    torch.testing.assert_close(out, expected, rtol=1e-9, atol=1e-11)
    weight = torch.randn_like(v)
    grads = (torch.autograd.grad(x, (q, k, v), weight) for x in (out, expected))
    for a, b in zip(*grads):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)


def test_given_weights_are_those_of_each_token():
    packed = PackedShapes([(2, 3), (1, 4)])
    q, k, v = torch.randn(3, 1, 2, 10, 8, dtype=torch.float64)
    weights = torch.rand(1, 2, 10, dtype=torch.float64)
    out = rala_attention(q, k, v, packed=packed, token_weights=weights)
    for part in (slice(0, 6), slice(6, 10)):
        alone = rala_attention(
            *(x[:, :, part] for x in (q, k, v)), token_weights=weights[..., part]
        )
        torch.testing.assert_close(out[:, :, part], alone)
    ones = torch.ones(1, 1, 1, dtype=torch.float64)
    shared = rala_attention(q, k, v, packed=packed, token_weights=ones)
    each = rala_attention(q, k, v, packed=packed, token_weights=ones.expand(1, 2, 10))
    torch.testing.assert_close(shared, each)


@pytest.mark.parametrize('name', OPERATORS)
def test_sums_are_in_float32_under_autocast(name):
    packed = PackedShapes([(30, 40), (2, 3)])
    q, k, v = torch.randn(3, 1, 2, packed.num_tokens, 16).bfloat16()
    with torch.autocast('cpu', torch.bfloat16):
        out = OPERATORS[name](q, k, v, feature_map='elu+1', packed=packed)
    assert out.dtype == torch.bfloat16
    exact = one_by_one(name, (q.double(), k.double(), v.double()), packed.hw_shapes)
    assert (out - exact).norm() < 5e-3 * exact.norm()


def test_compiles_and_recompiles_for_other_sizes():
    calls = []

    def backend(graph, _):
        calls.append(graph)
        return graph.forward

    torch.compiler.reset()
    compiled = torch.compile(
        lambda q, packed: rala_attention(q, q, q, packed=packed, rotary=Rotary(packed, 8)),
        fullgraph=True, backend=backend, dynamic=False,
    )  # fmt: skip
    for shapes in ([(2, 3), (1, 4)], [(2, 3), (1, 4)], [(1, 4), (2, 3)]):
        packed, q = PackedShapes(shapes), torch.randn(1, 2, 10, 8)
        expected = rala_attention(q, q, q, packed=packed, rotary=Rotary(packed, 8))
        torch.testing.assert_close(compiled(q, packed), expected)
    assert len(calls) == 2  # the sizes are part of the graph, not the objects


def test_lengths_and_table():
    packed = PackedShapes([(2, 3), (1, 4)], num_extra_tokens=1)
    assert packed.lengths == (7, 5) and packed.num_tokens == 12
    # The tables of the first map have 2 + 3 rows and columns of cosines, and of sines, 4 angles.
    assert packed.table(4).tolist() == [[0, 7, 3, 0], [7, 5, 4, 48]]
    plain = PackedShapes([(2, 3), [1, 4]])
    assert hash(plain) == hash(PackedShapes([(2, 3), (1, 4)]))
    assert plain.with_extra_tokens(1) == packed


def test_shapes_of_an_array():
    packed = PackedShapes(torch.tensor([[2, 3], [1, 4]]))
    assert packed == PackedShapes([(2, 3), (1, 4)])
    with pytest.raises(ValueError, match='num_extra_tokens must be an integer of at least 0'):
        PackedShapes([(2, 3)], num_extra_tokens=0.5)


@pytest.mark.parametrize(
    'shapes, message',
    [
        ([], r'\(H, W\) of at least one image'),
        ([(2, 3), (0, 4)], r'hw_shapes\[1\]=\(0, 4\) has no tokens'),
        ([(2, 3, 4)], r'hw_shapes\[0\] must be two integers \(H, W\), got \(2, 3, 4\)'),
        ([6], r'hw_shapes\[0\] must be two integers \(H, W\), got 6'),
        ([(2.0, 3)], r'got \(2.0, 3\)'),
        ([(2, None)], r'got \(2, None\)'),
        (None, r'hw_shapes must be a list of \(H, W\), got None'),
    ],
)
def test_shapes_that_are_none(shapes, message):
    with pytest.raises(ValueError, match=message):
        PackedShapes(shapes)


@pytest.mark.parametrize(
    'batch, tokens, change, error, message',
    [
        (1, 11, {}, ValueError, r'have \[6, 4\] tokens, together 10, but q has 11'),
        (2, 10, {}, ValueError, r'a batch of 1, got q with \(2, 2, 10, 8\)'),
        (1, 10, dict(key_padding_mask=torch.zeros(1, 10, dtype=torch.bool)), ValueError,
         'no padding, got key_padding_mask'),
        (1, 10, dict(packed=[(2, 3), (1, 4)]), TypeError, 'must be a PackedShapes, got list'),
        (1, 10, dict(rotary=Rotary((2, 5), 8)), ValueError, r'rotary.hw_shape must be packed='),
        (1, 10, dict(packed=None, rotary=Rotary(PackedShapes([(2, 5)]), 8)), ValueError,
         'must be packed=None, got PackedShapes'),
    ],
)  # fmt: skip
def test_tokens_that_do_not_fit(batch, tokens, change, error, message):
    q = torch.randn(batch, 2, tokens, 8)
    options = dict(dict(packed=PackedShapes([(2, 3), (1, 4)])), **change)
    for operator in OPERATORS.values():
        with pytest.raises(error, match=message):
            operator(q, q, q, **options)
