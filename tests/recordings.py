"""Comparison of layers with recorded tensors, see tests/golden/README.md."""

import json

import torch


def below(tensors, prefix):
    """Return the tensors whose names begin with a prefix, by the rest of their names."""
    return {k[len(prefix) :]: v for k, v in tensors.items() if k.startswith(prefix)}


def assert_near(found, expected, bound=1e-5):
    """Compare tensors, or lists of them, by the norm of their difference."""
    if not isinstance(found, torch.Tensor):
        assert len(found) == len(expected)
        for pair in zip(found, expected):
            assert_near(*pair, bound)
        return
    assert found.shape == expected.shape
    assert (found - expected).norm() < bound * expected.norm()


def load_case(golden, file, name):
    """Return the tensors and the facts of a recorded case."""
    tensors, metadata = golden(file)
    return below(tensors, f'{name}.'), json.loads(metadata['cases'])[name]


def assert_equals_recording(layer, case, facts, convert, **options):
    """Compare the output of real tokens and the gradients of x and of all parameters.

    ``convert`` gives released weights, and their gradients, the names and shapes of ``layer``.
    """
    layer.double().load_state_dict(convert(below(case, 'state.')))
    x, mask = case['in.x'].requires_grad_(), case.get('in.key_padding_mask')
    if mask is not None:
        options['key_padding_mask'] = mask
    out = layer(x, tuple(facts['hw']), **options)
    (out * case['in.cotangent']).sum().backward()
    real = slice(None) if mask is None else ~mask
    torch.testing.assert_close(out[real], case['out'][real], rtol=0, atol=1e-10)
    found = dict(x=x.grad, **{name: p.grad for name, p in layer.named_parameters()})
    expected = dict(x=case['grad.x'], **convert(below(case, 'grad.state.')))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
