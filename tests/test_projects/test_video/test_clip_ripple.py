"""Ripple attention on clips: against the definition in loops, gradients, masks, memory."""

import math
from functools import partial

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mmlinattn.models.layers import RippleAttention
from mmlinattn.ops import ripple_attention, stick_breaking
from mmlinattn.projects.video import ClipRippleAttention, clip_ripple, clip_ripple_attention


def case(shape, reach, extra=0, heads=2, dtype=torch.float64):
    torch.manual_seed(0)
    count = math.prod(shape)
    q, k = torch.rand(2, 2, heads, extra + count, 4, dtype=dtype)
    v = torch.randn(2, heads, extra + count, 3, dtype=dtype)
    return q, k, v, stick_breaking(torch.randn(2, heads, count, reach, dtype=dtype))


def by_hand(q, k, v, weights, shape, extra, mask):
    """The definition, token by token."""
    places = [(t, y, x) for t in range(shape[0]) for y in range(shape[1]) for x in range(shape[2])]
    reach, out = weights.shape[-1] - 1, torch.zeros_like(v)
    for i in range(q.shape[2]):
        total = norm = 0
        for j in range(q.shape[2]):
            if i < extra:
                weight = torch.ones_like(weights[:, :, 0, 0])
            elif j < extra:
                weight = weights[:, :, i - extra, reach]
            else:
                pairs = zip(places[i - extra], places[j - extra])
                distance = max(abs(a - b) for a, b in pairs)
                weight = weights[:, :, i - extra, min(distance, reach)]
            score = weight * (q[:, :, i] * k[:, :, j]).sum(-1)
            if mask is not None:
                score = score.masked_fill(mask[:, None, j], 0)
            total, norm = total + score[..., None] * v[:, :, j], norm + score
        out[:, :, i] = total / (norm + 1e-6)[..., None]
    return out


@pytest.mark.parametrize('backend', ['reference', 'torch'])
@pytest.mark.parametrize('masked', [False, True])
@pytest.mark.parametrize(
    'shape, reach, extra',
    [((3, 4, 5), 2, 1), ((4, 2, 6), 3, 0), ((2, 2, 2), 5, 0), ((1, 3, 3), 1, 2), ((3, 1, 4), 0, 1)],
)
def test_equals_the_definition(backend, masked, shape, reach, extra):
    args = case(shape, reach, extra)
    mask = torch.rand(2, args[0].shape[2]) < 0.3 if masked else None
    out = clip_ripple_attention(
        *args, clip_shape=shape, num_extra_tokens=extra, key_padding_mask=mask, backend=backend
    )
    torch.testing.assert_close(out, by_hand(*args, shape, extra, mask))


def test_one_frame_is_a_map():
    args = case((1, 6, 7), 3)
    expected = ripple_attention(*args, hw_shape=(6, 7))
    torch.testing.assert_close(clip_ripple_attention(*args, clip_shape=(1, 6, 7)), expected)


def test_a_last_ring_of_padding_alone():
    """Its large weight would leave the rounding errors of sums minus themselves."""
    shape, reach = (4, 8, 8), 3
    q, k, v, _ = case(shape, reach, dtype=torch.float32)
    weights = stick_breaking(torch.full((2, 2, math.prod(shape), reach), -9.0))
    mask = torch.ones(2, *shape, dtype=torch.bool)
    mask[0, 1], mask[1, 0, :2, :2] = False, False
    mask[0, 1, 3:], mask[0, 1, :, 3:] = True, True  # three rows and columns: closer than the last
    args, options = (q, k, v, weights), dict(clip_shape=shape, key_padding_mask=mask.flatten(1))
    found = clip_ripple_attention(*args, **options)
    exact = clip_ripple_attention(*(x.double() for x in args), **options, backend='reference')
    near = (~mask).flatten(1)[:, None, :, None].expand_as(v)  # of the real tokens themselves
    assert (found - exact)[near].norm() < 1e-5 * exact[near].norm()


@pytest.mark.parametrize('budget', [1, 10**9])
def test_gradients(monkeypatch, budget):
    monkeypatch.setattr(
        clip_ripple, 'chunk_budget', lambda *_, **__: budget
    )  # with and without chunks
    args = [x.requires_grad_() for x in case((4, 3, 5), 2, 1, heads=1)]
    options = dict(clip_shape=(4, 3, 5), num_extra_tokens=1)
    grads = []
    for backend in ('reference', 'torch'):
        out = clip_ripple_attention(*args, **options, backend=backend)
        grads.append(torch.autograd.grad(out.sin().sum(), args))
    torch.testing.assert_close(*grads)
    small = [x.detach()[:1, :, :9].requires_grad_() for x in args[:3]]
    weights = args[3].detach()[:1, :, :8].requires_grad_()
    call = partial(clip_ripple_attention, clip_shape=(2, 2, 2), num_extra_tokens=1)
    assert torch.autograd.gradcheck(call, (*small, weights))


class CountElements(TorchDispatchMode):
    """Count the elements of all results."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.count += sum(x.numel() for x in tree_leaves(out) if isinstance(x, torch.Tensor))
        return out


def test_training_is_linear_in_the_frames(monkeypatch):
    """A slice a chunk would give each chunk a gradient as large as the clip."""
    monkeypatch.setattr(
        clip_ripple, 'chunk_budget', lambda *_, **__: 1
    )  # a chunk a tile of two frames
    counts = []
    for frames in (16, 32, 64):
        q, k, v, weights = case((frames, 4, 4), 2)
        leaves = [x.requires_grad_() for x in (q, k, v, weights)]
        with CountElements() as counter:
            out = clip_ripple_attention(*leaves, clip_shape=(frames, 4, 4))
            torch.autograd.grad(out.sum(), leaves)
        counts.append(counter.count)
    assert counts[2] / counts[1] < 2.1 and counts[1] / counts[0] < 2.1


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_half_types(dtype):
    args = [x.to(dtype) for x in case((4, 4, 4), 2, 1)]
    out = clip_ripple_attention(*args, clip_shape=(4, 4, 4), num_extra_tokens=1)
    exact = [x.double() for x in args]
    expected = clip_ripple_attention(*exact, clip_shape=(4, 4, 4), num_extra_tokens=1)
    assert out.dtype == dtype
    torch.testing.assert_close(out.double(), expected, rtol=2e-2, atol=2e-2)


def test_empty_batches():
    x = torch.zeros(0, 60, 32, requires_grad=True)
    out = ClipRippleAttention(32, 2, max_distance=2)(x, (3, 4, 5))
    out.sum().backward()
    assert out.shape == x.grad.shape


@pytest.mark.parametrize(
    'options, error',
    [
        (dict(clip_shape=(3, 4)), r'\(T, H, W\), got \(3, 4\)'),
        (dict(clip_shape=(3, 4, 4)), '48 tokens, q has 60'),
        (dict(clip_shape=(3, 4, 5), num_extra_tokens=1), '61 tokens, q has 60'),
    ],
)
def test_bad_shapes_are_named(options, error):
    with pytest.raises(ValueError, match=error):
        clip_ripple_attention(*case((3, 4, 5), 2), **options)


@pytest.mark.parametrize(
    'options, error',
    [
        (dict(groups='log'), "groups='chebyshev'"),
        (dict(backend='tile'), "got 'tile'"),
        (dict(rotary=True), 'set rotary=False'),
        (dict(lepe=3), 'set lepe=0'),
    ],
)
def test_layers_name_what_clips_lack(options, error):
    with pytest.raises(ValueError, match=error):
        ClipRippleAttention(8, 2, **options)


def test_layers_on_maps_are_ripple_attention():
    attn, of_maps = ClipRippleAttention(8, 2), RippleAttention(8, 2)
    of_maps.load_state_dict(attn.state_dict())
    x = torch.randn(1, 1 + 12, 8)
    expected = of_maps(x, (3, 4), num_extra_tokens=1)
    assert torch.equal(attn(x, (3, 4), num_extra_tokens=1), expected)
    torch.testing.assert_close(attn(x, (1, 3, 4), num_extra_tokens=1), expected)
    with pytest.raises(ValueError, match=r'must be \(H, W\), got \(1, 3, 4\)'):
        of_maps(x, (1, 3, 4), num_extra_tokens=1)


@pytest.mark.parametrize('weights', ['stick', 'fixed', 'softmax', 'truncated'])
def test_layers_on_clips(weights):
    attn = ClipRippleAttention(8, 2, max_distance=2, weights=weights).double()
    x = torch.randn(1, 1 + 24, 8, dtype=torch.float64)
    found = attn(x, (2, 3, 4), num_extra_tokens=1)
    attn.backend = 'reference'
    torch.testing.assert_close(found, attn(x, (2, 3, 4), num_extra_tokens=1))
