"""Rules of an attention: shapes, gradients, positions, padding, batches, precision."""

import math
from typing import Callable, List, Tuple

import torch
from mmengine.registry import MODELS
from torch import Tensor

from ..models.layers import BaseAttention
from ..ops import PackedShapes
from .attention_case import (
    BUILT,
    CALLED,
    CHANNELS,
    HEADS,
    LARGE_MAP,
    MEDIUM_MAP,
    AttentionCase,
    rule,
)
from .rules import compare, require, require_finite


@rule(
    'The constructor is (embed_dims, num_heads, **own options), and all own options have defaults.',
    'Derive from BaseAttention, give every option a default, pass **kwargs to super().__init__.',
)
def constructor(case: AttentionCase) -> None:
    case.given = f'embed_dims={CHANNELS}, num_heads={HEADS}'
    require(isinstance(case.attn, BaseAttention), 'it is no BaseAttention')


@rule(
    'The attention is registered, so that configs of all frameworks can name it.',
    'Decorate the class with @MODELS.register_module(), MODELS from mmengine.registry.',
    requires=BUILT,
)
def registered(case: AttentionCase) -> None:
    kind = type(case.attn)
    # Those of MMDetection, ... are children.
    others = [scope for scope, of in MODELS.children.items() if kind in of.module_dict.values()]
    is_in = f'it is in the registry of {others[0]} alone' if others else 'it is in no registry'
    require(kind in MODELS.module_dict.values(), f'{kind.__name__}: {is_in}')


@rule(
    'The class has `info`, an AttentionInfo: formula, cost, source, when to take it.',
    "Add it to the class body: info = AttentionInfo(formula='...', time='O(N d^2)', "
    "memory='O(N d)', source='...', use='...', needs_map=...). needs_map=True if the result "
    'depends on the positions of the tokens.',
    requires=BUILT,
)
def info(case: AttentionCase) -> None:
    _ = case.info  # raises RuleBroken


@rule(
    'The output has the shape and dtype of x, and no argument is changed.',
    'Return attend() in the shape and dtype of v. Write x = x + y, not x += y.',
    requires=BUILT,
)
def shape_and_dtype(case: AttentionCase) -> None:
    for dtype in (torch.float64, torch.float32):
        for training in (False, True):
            attn = case.clone(dtype).train(training)
            args = dict(query_pos=case.tokens().to(dtype), key_padding_mask=case.padding())
            x = case.tokens().to(dtype)
            before = [t.clone() for t in (x, *args.values())]
            note = 'training mode' if training else ''
            out = case.run(x, attn=attn, note=note, **args)
            require(
                out.shape == x.shape and out.dtype == dtype,
                f'the output is {tuple(out.shape)} {out.dtype}, expected {tuple(x.shape)} {dtype}',
            )
            for name, old, new in zip(('x', *args), before, (x, *args.values())):
                require(torch.equal(old, new), f'the call changed {name} in place')


@rule(
    'Tokens may have any strides.',
    'Use reshape() or flatten() in place of view() on q, k, v and x.',
    requires=CALLED,
)
def strides(case: AttentionCase) -> None:
    x = case.tokens()
    expected = case.run(x)
    out = case.run(x.mT.contiguous().mT, note='channels before tokens in memory')
    compare(out, expected, 'output')


@rule(
    'x and every parameter get a gradient that is finite, not zero and equal to finite '
    'differences in float64.',
    'Drop unused parameters. Check backward() of every custom autograd.Function with '
    'torch.autograd.gradcheck. Sum in accumulation_dtype(v.dtype), which keeps float64.',
    requires=CALLED,
)
def gradients(case: AttentionCase) -> None:
    x = case.tokens().requires_grad_()
    weight = torch.randn_like(x)

    def value() -> Tensor:
        return (case.run(x, key_padding_mask=case.padding()) * weight).sum()

    tensors = dict([('x', x), *case.attn.named_parameters()])
    found = torch.autograd.grad(value(), list(tensors.values()), allow_unused=True)
    for name, gradient in zip(tensors, found):
        require(gradient is not None, f'{name} is not used: its gradient is None')
        require_finite(gradient, f'gradient of {name}')
        require(gradient.any(), f'the gradient of {name} is zero everywhere')
    largest = max(float(gradient.norm()) for gradient in found)
    wrong = []
    for (name, tensor), gradient in zip(tensors.items(), found):
        direction = torch.randn_like(tensor)
        slope = float((gradient * direction).sum())
        allowed = 1e-4 * float(gradient.norm()) + 1e-7 * largest
        # A small normaliser bends the function within 1e-6.
        for step in (1e-6, 1e-8, 1e-9):
            measured = _slope(value, tensor, direction, step)
            if abs(measured - slope) <= allowed:
                break
        else:
            wrong.append(f'{name}: {slope:.4g} by backward, {measured:.4g} by differences')
    require(not wrong, 'slopes in a random direction differ; ' + '; '.join(wrong))


@torch.no_grad()
def _slope(value: Callable[[], Tensor], at: Tensor, direction: Tensor, step: float) -> float:
    """Return the central difference of ``value`` along a direction of a tensor."""
    start, sides = at.clone(), []
    for sign in (1, -1):
        at.add_(direction, alpha=sign * step)
        sides.append(float(value()))
        at.copy_(start)
    return (sides[0] - sides[1]) / (2 * step)


@rule(
    'query_pos is added to x for queries and keys, not for values.',
    'Compute q and k of x + query_pos and v of x, as BaseAttention.project does.',
    requires=CALLED,
)
def query_pos(case: AttentionCase) -> None:
    attn = case.clone(torch.float64)
    calls = _record_attend(attn)
    x, pos = case.tokens(), case.tokens()
    expected = case.run(x, attn=attn)
    zero = case.run(x, attn=attn, query_pos=torch.zeros_like(x))
    compare(zero, expected, 'output for query_pos of zeros')
    out = case.run(x, attn=attn, query_pos=pos)
    require(not torch.allclose(out, expected), 'query_pos does not change the output')
    values = [args[2] for args, _ in calls]
    if values:
        dims = ('image', 'head', 'token', 'channel')
        compare(values[-1], values[0], 'v, the value in attend(),', dims=dims)


def _record_attend(attn: BaseAttention) -> List[Tuple[tuple, Tensor]]:
    """Return a list that gets the arguments and the result of every call of ``attend``."""
    calls: List[Tuple[tuple, Tensor]] = []
    attend = attn.attend

    def recorded(*args):
        calls.append((args, attend(*args)))
        return calls[-1][1]

    attn.attend = recorded  # type: ignore[method-assign]  # of this object
    return calls


@rule(
    'Without positions, a permutation of the tokens permutes the output.',
    'Set needs_map=True in info if the attention uses positions. Otherwise look for an index or a '
    'cumulative sum over tokens.',
    requires=(*CALLED, 'info'),
)
def permutation(case: AttentionCase) -> None:
    if uses_positions(case.attn):
        return
    x, mask, order = case.tokens(), case.padding(), torch.randperm(case.num_tokens)
    expected = case.run(x, key_padding_mask=mask)[:, order]
    note = 'the tokens in another order'
    out = case.run(x[:, order], case.hw_shape[::-1], key_padding_mask=mask[:, order], note=note)
    compare(out, expected, 'permuted output')


def uses_positions(attn: BaseAttention) -> bool:
    """Return True if the output depends on the positions of the tokens."""
    parts = (attn.lepe, getattr(attn, 'position', None))
    positions = attn.rotary or any(part is not None for part in parts)
    return positions or bool(attn.info and attn.info.needs_map)


@rule(
    'The content of padding does not change the output of other tokens.',
    'Set keys and values of padding to 0, or their logits to -inf, before any sum, mean, softmax '
    'or convolution over tokens: layout.key_padding_mask.',
    requires=CALLED,
)
def padding_content(case: AttentionCase) -> None:
    x, mask = case.tokens(), case.padding()[..., None]
    expected = case.run(x.masked_fill(mask, 0), key_padding_mask=mask[..., 0])
    out = case.run(x.where(~mask, 9 * case.tokens()), key_padding_mask=mask[..., 0])
    compare(out.masked_fill(mask, 0), expected.masked_fill(mask, 0), 'output of a real token')


@rule(
    'Padding below and right of the map does not change the output: an image gives the same '
    'result in a larger batch.',
    'Take positions from hw_shape = (H, W), row-major: row = i // W, column = i % W. Divide by '
    'the number of real keys, not by N.',
    requires=(*CALLED, 'padding_content'),
)
def padded_map(case: AttentionCase) -> None:
    height, width = case.hw_shape
    x = case.tokens()
    expected = case.run(x)
    larger = 9 * torch.randn(2, height + 2, width + 2, x.shape[-1], dtype=x.dtype)
    larger[:, :height, :width] = x.unflatten(1, case.hw_shape)
    mask = torch.ones(larger.shape[:3], dtype=torch.bool)
    mask[:, :height, :width] = False
    out = case.run(
        larger.flatten(1, 2), (height + 2, width + 2), key_padding_mask=mask.flatten(1)
    ).unflatten(1, (height + 2, width + 2))
    compare(out[:, :height, :width].flatten(1, 2), expected, 'output of a real token')


@rule(
    'An image of nothing but padding has finite outputs and gradients; attend() returns 0 for it.',
    'Add eps to the normaliser, or replace rows without any key by 0: a softmax over -inf alone '
    'is NaN.',
    requires=CALLED,
)
def padding_only(case: AttentionCase) -> None:
    attn = case.clone(torch.float64)
    calls = _record_attend(attn)
    mask = torch.zeros(2, case.num_tokens, dtype=torch.bool)
    mask[0] = True
    x = case.tokens().requires_grad_()
    out = case.run(x, attn=attn, key_padding_mask=mask)
    (gradient,) = torch.autograd.grad(out.sum(), x)
    require_finite(out, 'output')
    require_finite(gradient, 'gradient of x')
    for _, y in calls:
        compare(y[0], torch.zeros_like(y[0]), 'attend()', dims=('head', 'token', 'channel'))


@rule(
    'In evaluation mode each image is computed by itself, and twice the same.',
    'Sum over tokens, never over the batch: dims 2 and 3 of (B, heads, N, d). Draw random '
    'numbers only in training, or keep them in a buffer.',
    requires=CALLED,
)
def batch_independence(case: AttentionCase) -> None:
    x, pos, mask = case.tokens(), case.tokens(), case.padding()
    together = case.run(x, query_pos=pos, key_padding_mask=mask)
    for i in range(2):
        image = slice(i, i + 1)
        out = case.run(
            x[image], query_pos=pos[image], key_padding_mask=mask[image], note=f'image {i} alone'
        )
        compare(out, together[image], f'output for image {i} alone')


@rule(
    'Packed images of different sizes have the outputs and gradients of each image alone.',
    'Keep the forward() of BaseAttention, which calls attend() image by image, or give each image '
    'to it. An attend() that takes all at once (attends_packed) sums over layout.packed.lengths.',
    requires=CALLED,
)
def packed_images(case: AttentionCase) -> None:
    height, width = case.hw_shape
    shapes = [(height, width), (width, height), (height + 2, width + 1), (height, width)]
    try:
        case.run(case.tokens(math.prod(shapes[2])), shapes[2])
    except ValueError:  # it has a parameter for each token of one size
        shapes = shapes[:2]
    packed = PackedShapes(shapes)
    x = case.tokens(packed.num_tokens, batch=1).requires_grad_()
    weight = torch.randn_like(x)
    images = zip(packed.split(x), packed.split(weight), shapes)
    parts = [case.run(image, shape, query_pos=pos) for image, pos, shape in images]
    expected, out = torch.cat(parts, 1), case.run(x, packed, query_pos=weight)
    compare(out, expected, 'output of packed images')
    grad, alone = (torch.autograd.grad((y * weight).sum(), x)[0] for y in (out, expected))
    compare(grad, alone, 'gradient of packed images')
    case.raises(
        ValueError, str(packed.num_tokens + 1), case.tokens(packed.num_tokens + 1, 1), packed
    )


HALVES = ((torch.bfloat16, 1e-2, 0.2), (torch.float16, 2e-3, 0.05))


@rule(
    'Under autocast the output has the dtype of autocast, is close to float32, and gradients are '
    'finite and close.',
    'Compute sums, softmaxes and normalisers in accumulation_dtype(v.dtype) inside of '
    'no_autocast(q), and return .to(v.dtype).',
    requires=CALLED,
)
def half_precision(case: AttentionCase) -> None:
    attn, x = case.clone(torch.float32), case.tokens().float().requires_grad_()
    exact, weight = case.run(x, attn=attn), torch.randn(x.shape)
    size = float(exact.detach().norm())
    inputs = dict([('x', x), *attn.named_parameters()])
    (of_x, *_) = torch.autograd.grad((exact * weight).sum(), list(inputs.values()))
    # Gradients have a larger tolerance: rounding switches a ReLU.
    for dtype, tolerance, of_gradient in HALVES:
        with torch.autocast('cpu', dtype=dtype):
            out = case.run(x, attn=attn, note=f'{dtype} autocast')
        require(out.dtype == dtype, f'the output is {out.dtype}, expected {dtype}')
        require_finite(out, 'output')
        error = float((out.detach() - exact.detach()).norm()) / size
        require(error < tolerance, f'relative error {error:.2g}, allowed {tolerance:g}')
        found = torch.autograd.grad((out.float() * weight).sum(), list(inputs.values()))
        for name, gradient in zip(inputs, found):
            require_finite(gradient, f'gradient of {name}')
        error = float((found[0] - of_x).norm() / of_x.norm())
        require(
            error < of_gradient,
            f'relative error {error:.2g} of the gradient of x, allowed {of_gradient:g}',
        )


@rule(
    'Without N^2 in info.memory, no tensor has N x N elements.',
    'Multiply keys with values before queries, or split the queries into chunks. If every pair of '
    "tokens is compared on purpose, say so: time='O(N^2 d)', memory='O(N^2)'.",
    requires=(*CALLED, 'info'),
)
def memory(case: AttentionCase) -> None:
    claimed = case.info.memory
    require(
        'N^2' in claimed or not case.quadratic(),
        f'a tensor has N x N elements, and info.memory is {claimed!r}',
    )


@rule(
    '2,304 tokens with large values, and 131,072 tokens unless the attention is quadratic, stay '
    'finite under float16 autocast.',
    'Sums over tokens exceed 65,504, the largest float16: compute them in '
    'accumulation_dtype(v.dtype) inside of no_autocast(q). Subtract the maximum before exp().',
    requires=(*CALLED, 'info', 'half_precision'),
)
def large_map(case: AttentionCase) -> None:
    sizes = [(MEDIUM_MAP, 4)]
    if 'N^2' not in case.info.time and not case.quadratic():
        sizes.append((LARGE_MAP, 1))
    for (height, width), scale in sizes:
        attn, x = case.clone(torch.float32), scale * case.tokens(height * width, batch=1).float()
        with torch.no_grad(), torch.autocast('cpu', dtype=torch.float16):
            note = f'{scale} x normal distribution, float16 autocast'
            out = case.run(x, (height, width), attn, note=note)
        require_finite(out, 'output')


@rule(
    'Maps of any size work, from 1x1 on.',
    'Pad odd maps to whole windows or cells. Clamp numbers of cells to the size of the map.',
    requires=CALLED,
)
def odd_maps(case: AttentionCase) -> None:
    for hw in ((1, 1), (1, 7), (3, 1)):
        x = case.tokens(hw[0] * hw[1]).requires_grad_()
        out = case.run(x, hw)
        require_finite(out, 'output')
        require_finite(torch.autograd.grad(out.sum(), x)[0], 'gradient of x')
    half = case.clone(torch.bfloat16)
    require_finite(case.run(case.tokens(1).bfloat16(), (1, 1), half), 'output')
