"""Rules of the attention contract, checked on a small layer in float64 and evaluation mode."""

import copy
import io
import math
import warnings
from functools import cached_property
from typing import Any, List, Mapping, Optional, Sequence, Tuple, Type, Union

import torch
from mmengine.registry import MODELS
from torch import Tensor, nn
from torch.export import Dim, export
from torch.nn.modules.batchnorm import _BatchNorm

from ..models.backbones import RAVLT, ViT
from ..models.layers import (
    AttnCfg,
    BaseAttention,
    TokenLayout,
    build_attention,
    map_to_tokens,
    tokens_to_map,
)
from ..models.layers.attend_calls import calls_of
from ..ops import PackedShapes
from .backbone import check_backbone
from .rules import Rules, compare, require, require_gradients

ATTENTION_RULES = Rules('constructor', 'shape_and_dtype')
SMALL_RAVLT = dict(embed_dims=(16, 16, 32, 32), depths=1, num_heads=(1, 2, 2, 4))
SMALL_VIT = dict(embed_dims=16, num_heads=2, depth=2, patch_size=8)


class AttentionCase:
    """Layer under test with a map ``hw_shape``, at least 3 x 3, and its inputs.

    Parameters that start as zeros, such as learnt positions or gates, get small random values, so
    that the rules see them.
    """

    def __init__(self, attn_cfg: AttnCfg, hw_shape: Tuple[int, int]) -> None:
        self.attn_cfg, self.hw_shape = attn_cfg, hw_shape

    def build(self) -> BaseAttention:
        attn = build_attention(self.attn_cfg, 32, 2).double().eval()
        for parameter in attn.parameters():
            if not parameter.any():
                nn.init.normal_(parameter, std=0.1)
        return attn

    @cached_property
    def attn(self) -> BaseAttention:
        return self.build()

    def clone(self, dtype: torch.dtype) -> BaseAttention:
        """Return a copy of the layer that a rule may change."""
        return copy.deepcopy(self.attn).to(dtype)

    def tokens(self, n: int = 0, batch: int = 2) -> Tensor:
        """Return random tokens (B, n, C); as many as the map has if ``n`` is 0."""
        n = n or self.hw_shape[0] * self.hw_shape[1]
        return torch.randn(batch, n, self.attn.embed_dims, dtype=torch.float64)

    def padding(self) -> Tensor:
        """Return a mask (2, N): the lower rows of image 0, the right columns of image 1."""
        height, width = self.hw_shape
        mask = torch.zeros(2, height, width, dtype=torch.bool)
        mask[0, height // 2 + 1 :] = True
        mask[1, :, 2 * width // 3 :] = True
        return mask.flatten(1)

    def run(self, x: Tensor, hw_shape: Any = None, **kwargs: Any) -> Tensor:
        return self.attn(x, hw_shape or self.hw_shape, **kwargs)

    def raises(self, kind: Type[Exception], text: str, *args: Any, **kwargs: Any) -> None:
        """Raise AssertionError unless the call raises such an error with ``text`` in it."""
        try:
            self.run(*args, **kwargs)
        except kind as error:
            require(text in str(error), f'the message does not contain {text!r}: {error}')
        else:
            raise AssertionError(f'no error; expected a {kind.__name__} with {text!r}')


def check_attention(
    cls: Union[str, type],
    *,
    hw_shape: Tuple[int, int] = (5, 6),
    rules: Optional[Sequence[str]] = None,
    expected_failures: Optional[Mapping[str, str]] = None,
    **options: Any,
) -> None:
    """Check that an attention obeys every rule in ``ATTENTION_RULES``.

    Args:
        cls: class or registered name of the attention, a :class:`BaseAttention`.
        hw_shape: (H, W) of most maps, at least 3 x 3; another one for attentions with a fixed
            number of tokens.
        rules: names of rules to check; all by default.
        expected_failures: reasons by name of the rules that the attention cannot keep. A rule
            that holds in spite of this is an error.
        options: options of the constructor.

    Raises:
        AssertionError: a rule is broken. The message has every broken rule and what was found.
        ValueError: a rule is unknown.
        TypeError: ``cls`` is an object.

    Example:
        >>> check_attention('HydraAttention', rules=['padding', 'batch_independence'])
    """
    __tracebackhide__ = True
    if not isinstance(cls, (str, type)):
        raise TypeError(f'cls must be a class or its name, got a {type(cls).__name__}')
    case = AttentionCase(dict(options, type=cls), hw_shape)
    name = cls if isinstance(cls, str) else cls.__name__
    ATTENTION_RULES.check(name, case, rules, expected_failures)


@ATTENTION_RULES.add
def constructor(case: AttentionCase) -> None:
    """Check the constructor: (embed_dims, num_heads, **own options), all with defaults."""
    require(isinstance(case.attn, BaseAttention), 'it is no BaseAttention')


@ATTENTION_RULES.add
def registered(case: AttentionCase) -> None:
    """Check that the class is in MMEngine's root registry MODELS."""
    kind = type(case.attn)
    require(kind in MODELS.module_dict.values(), f'{kind.__name__} is not in MODELS of MMEngine')


@ATTENTION_RULES.add
def shape_and_dtype(case: AttentionCase) -> None:
    """Check that the output has the shape and dtype of x, and that no argument changes."""
    for dtype in (torch.float64, torch.float32):
        x, pos, mask = case.tokens().to(dtype), case.tokens().to(dtype), case.padding()
        before = [t.clone() for t in (x, pos, mask)]
        attn = case.clone(dtype).train(dtype == torch.float32)
        out = attn(x, case.hw_shape, query_pos=pos, key_padding_mask=mask)
        found, expected = (tuple(out.shape), out.dtype), (tuple(x.shape), dtype)
        require(found == expected, f'the output is {found}, expected {expected}')
        for old, new in zip(before, (x, pos, mask)):
            require(torch.equal(old, new), 'the call changed an argument in place')


@ATTENTION_RULES.add
def half_module(case: AttentionCase) -> None:
    """Check that a layer in bfloat16 has finite outputs in bfloat16."""
    out = case.clone(torch.bfloat16)(case.tokens().bfloat16(), case.hw_shape)
    require(out.dtype == torch.bfloat16, f'the output is {out.dtype}')
    require(out.isfinite().all(), 'an output is not finite')


@ATTENTION_RULES.add
def strides(case: AttentionCase) -> None:
    """Check that tokens may have any strides."""
    x = case.tokens()
    compare(case.run(x.mT.contiguous().mT), case.run(x), 'output')


@ATTENTION_RULES.add
def gradients(case: AttentionCase) -> None:
    """Check that gradients are finite, not zero and equal to finite differences."""
    x, weight = case.tokens().requires_grad_(), case.tokens()

    def value() -> Tensor:
        return (case.run(x, key_padding_mask=case.padding()) * weight).sum()

    learnt = ((name, p) for name, p in case.attn.named_parameters() if p.requires_grad)
    tensors = dict([('x', x), *learnt])
    found = torch.autograd.grad(value(), list(tensors.values()), allow_unused=True)
    require_gradients([*tensors], [*found])
    largest = max(float(gradient.norm()) for gradient in found)
    for (name, tensor), gradient in zip(tensors.items(), found):
        direction = torch.randn_like(tensor)
        slope = float((gradient * direction).sum())
        allowed = 1e-4 * float(gradient.norm()) + 1e-7 * largest
        # A small normaliser bends the function within 1e-6.
        for step in (1e-6, 1e-8, 1e-9):
            with torch.no_grad():
                start = tensor.clone()
                sides = []
                for sign in (1, -1):
                    tensor.copy_(start + sign * step * direction)
                    sides.append(float(value()))
                tensor.copy_(start)
            measured = (sides[0] - sides[1]) / (2 * step)
            if abs(measured - slope) <= allowed:
                break
        else:
            raise AssertionError(f'{name}: {slope:.4g} by backward, {measured:.4g} by differences')


@ATTENTION_RULES.add
def query_pos(case: AttentionCase) -> None:
    """Check that query_pos is added to x for queries and keys, not for values."""
    x, pos = case.tokens(), case.tokens().requires_grad_()
    outs, calls = [], []
    for tokens, positions in ((x, None), (x, pos), (x + pos, None)):
        with calls_of(case.attn) as found:
            outs.append(case.run(tokens, query_pos=positions))
        calls += found[:1]  # attend() may call itself
    expected, out, _ = outs
    compare(case.run(x, query_pos=0 * pos), expected, 'output for query_pos of zeros')
    require(not torch.allclose(out, expected), 'query_pos does not change the output')
    require_gradients(['query_pos'], [*torch.autograd.grad(out.square().sum(), pos)])
    if calls:
        without, with_pos, of_sum = calls
        compare(with_pos.v, without.v, 'v, the value in attend(),')
        compare(with_pos.q, of_sum.q, 'q, the query in attend(),')
        compare(with_pos.k, of_sum.k, 'k, the key in attend(),')


@ATTENTION_RULES.add
def padding(case: AttentionCase) -> None:
    """Check that finite padding changes nothing, and that attend() of padding alone is 0."""
    x, mask = case.tokens().requires_grad_(), case.padding()[..., None]
    expected = case.run(x.masked_fill(mask, 0), key_padding_mask=mask[..., 0])
    out = case.run(x.where(~mask, 9 * case.tokens()), key_padding_mask=mask[..., 0])
    compare(out.masked_fill(mask, 0), expected.masked_fill(mask, 0), 'output of a real token')
    attn = case.clone(torch.float64)
    heads: List[Tensor] = []
    attend = attn.attend

    def recorded(q: Tensor, k: Tensor, v: Tensor, layout: TokenLayout) -> Tensor:
        heads.append(attend(q, k, v, layout))
        return heads[-1]

    attn.attend = recorded  # type: ignore[method-assign]  # of this copy
    nothing = attn(x, case.hw_shape, key_padding_mask=torch.ones_like(mask[..., 0]))
    leaves = [x, *(p for p in attn.parameters() if p.requires_grad)]
    # A scaled loss, as in mixed precision: a division by nearly 0 would overflow.
    gradients = torch.autograd.grad(2.0**16 * nothing.sum(), leaves, allow_unused=True)
    for out in heads:
        compare(out, torch.zeros_like(out), 'attend() of nothing but padding')
    finite = [values.isfinite().all() for values in (nothing, *gradients) if values is not None]
    require(all(finite), 'nothing but padding gives NaN')


@ATTENTION_RULES.add
def padded_map(case: AttentionCase) -> None:
    """Check that padding below and right of the map, as in a larger batch, changes nothing."""
    height, width = case.hw_shape
    x = case.tokens()
    larger = 9 * torch.randn(2, height + 2, width + 2, x.shape[-1], dtype=x.dtype)
    larger[:, :height, :width] = x.unflatten(1, case.hw_shape)
    mask = torch.ones(larger.shape[:3], dtype=torch.bool)
    mask[:, :height, :width] = False
    shape = (height + 2, width + 2)
    out = case.run(larger.flatten(1, 2), shape, key_padding_mask=mask.flatten(1))
    out = out.unflatten(1, shape)[:, :height, :width].flatten(1, 2)
    compare(out, case.run(x), 'output of a real token')


@ATTENTION_RULES.add
def batch_independence(case: AttentionCase) -> None:
    """Check that each image is computed by itself; with chance or batch norm, in evaluation."""
    x, mask = case.tokens(), case.padding()
    has_norm = any(isinstance(module, _BatchNorm) for module in case.attn.modules())
    for training in (False, True)[: 1 if has_norm else 2]:
        attn = case.clone(torch.float64).train(training)
        together, again, *alone = (
            attn(x[part], case.hw_shape, key_padding_mask=mask[part])
            for part in (slice(None), slice(None), slice(1), slice(1, None))
        )
        if not training or torch.equal(together, again):  # else dropout or random features
            compare(torch.cat(alone), together, f'outputs for images alone, {training=}')


@ATTENTION_RULES.add
def packed_images(case: AttentionCase) -> None:
    """Check that packed images have outputs and gradients of each image alone, or are refused."""
    if case.attn.packed_unsupported_reason():
        return
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
    more = packed.num_tokens + 1
    case.raises(ValueError, str(more), case.tokens(more, 1), packed)


def uses_positions(attn: BaseAttention) -> bool:
    """Return True if the output depends on the positions of the tokens."""
    parts = attn.lepe, getattr(attn, 'position', None)
    return attn.rotary or attn.needs_map or any(part is not None for part in parts)


@ATTENTION_RULES.add
def permutation(case: AttentionCase) -> None:
    """Check that permuted tokens have permuted outputs, unless needs_map or an option."""
    if uses_positions(case.attn):
        return
    x, mask = case.tokens(), case.padding()
    order = torch.randperm(x.shape[1])
    out = case.run(x[:, order], case.hw_shape[::-1], key_padding_mask=mask[:, order])
    compare(out, case.run(x, key_padding_mask=mask)[:, order], 'output of permuted tokens')


@ATTENTION_RULES.add
def half_precision(case: AttentionCase) -> None:
    """Check that output and gradient of x under autocast are near float32, also 4,096 tokens."""
    attn, x = case.clone(torch.float32), case.tokens().float().requires_grad_()
    exact, weight = attn(x, case.hw_shape), torch.randn(x.shape)
    (of_x,) = torch.autograd.grad((exact * weight).sum(), x)
    # Gradients have a larger tolerance: rounding switches a ReLU.
    for dtype, allowed in ((torch.bfloat16, (1e-2, 0.2)), (torch.float16, (2e-3, 0.05))):
        with torch.autocast('cpu', dtype=dtype):
            out = attn(x, case.hw_shape)
        require(out.dtype == dtype, f'the output is {out.dtype}, expected {dtype}')
        (found,) = torch.autograd.grad((out.float() * weight).sum(), x)
        pairs = ('output', out, exact), ('gradient of x', found, of_x)
        for (name, a, b), limit in zip(pairs, allowed):
            error = float((a - b).detach().norm() / b.detach().norm())
            require(error < limit, f'{dtype}: relative error {error:.2g} of the {name}')
    x, hw = case.tokens(64 * 64, 1).float(), (64, 64)
    with torch.no_grad():
        try:
            attn(x[:, :2], (1, 2))
        except ValueError:  # it takes maps of one size
            return
        exact = attn(x, hw)
        with torch.autocast('cpu', dtype=torch.float16):
            error = float((attn(x, hw) - exact).norm() / exact.norm())
    require(error < 5e-3, f'relative error {error:.2g} of the output of 4,096 tokens')


@ATTENTION_RULES.add
def odd_maps(case: AttentionCase) -> None:
    """Check that maps of any size work, from 1x1 on."""
    for hw in ((1, 1), (1, 7), (3, 1)):
        x = case.tokens(hw[0] * hw[1]).requires_grad_()
        out = case.run(x, hw)
        (gradient,) = torch.autograd.grad(out.sum(), x)
        require(out.isfinite().all() and gradient.isfinite().all(), f'{hw}: not finite')


@ATTENTION_RULES.add
def extra_tokens(case: AttentionCase) -> None:
    """Check that extra tokens read all and are read in any order, or are refused."""
    height, width = case.hw_shape
    x, args = case.tokens(), dict(hw_shape=(height - 1, width), num_extra_tokens=width)
    try:
        case.attn.check_extra_tokens(1)
    except ValueError:
        case.raises(ValueError, 'does not support extra tokens', x, **args)
        return
    mask = torch.zeros(x.shape[:2], dtype=torch.bool)
    mask[0, -5:] = mask[1, 0] = True
    hidden, out = mask[..., None], case.run(x, key_padding_mask=mask, **args)
    other = case.run(x.where(~hidden, 9 * case.tokens()), key_padding_mask=mask, **args)
    compare(other.masked_fill(hidden, 0), out.masked_fill(hidden, 0), 'padding with extra tokens')
    order = [*reversed(range(width)), *range(width, height * width)]
    compare(case.run(x[:, order], **args), case.run(x, **args)[:, order], 'extra tokens reversed')
    x.requires_grad_()
    out = case.run(x, **args)
    for reader, read in ((slice(-1, None), slice(width)), (slice(width), slice(None))):
        (of_x,) = torch.autograd.grad(out[:, reader].square().sum(), x, retain_graph=True)
        unread = (of_x[:, read].abs().sum((0, 2)) == 0).nonzero().flatten().tolist()
        who = 'extra tokens ignore' if read == slice(None) else 'a token ignores extra tokens'
        require(not unread, f'{who} {unread}')


@ATTENTION_RULES.add
def argument_errors(case: AttentionCase) -> None:
    """Check that wrong arguments raise a ValueError or TypeError with the value."""
    (height, width), x = case.hw_shape, case.tokens()
    n, mask = x.shape[1], torch.zeros(x.shape[:2])
    case.raises(ValueError, str((height, width + 1)), x, (height, width + 1))
    case.raises(ValueError, str(n + 1), case.tokens(n + 1))
    for hw in ((height, float(width)), (height, width, 1, 1), 'rows', (-height, -width)):
        case.raises(ValueError, repr(hw), x, hw)
    case.raises(ValueError, str(n - 1), x, query_pos=x[:, 1:])
    case.raises(ValueError, str((2, n - 1)), x, key_padding_mask=mask[:, 1:].bool())
    case.raises(TypeError, 'bool', x, key_padding_mask=mask)


@ATTENTION_RULES.add
def state_dict(case: AttentionCase) -> None:
    """Check that a state dict loaded into a new layer gives the same output."""
    torch.manual_seed(1)  # other initial values
    other, x = case.build(), case.tokens()
    other.load_state_dict(case.attn.state_dict())
    compare(other(x, case.hw_shape), case.run(x), 'output')


@ATTENTION_RULES.add
def compiles(case: AttentionCase) -> None:
    """Check that torch.compile(fullgraph=True) takes the layer and its backward pass."""
    torch.compiler.reset()
    compiled = torch.compile(case.clone(torch.float64), fullgraph=True, backend='aot_eager')
    x, pairs = case.tokens().requires_grad_(), []
    for run in (compiled, case.attn):
        out = run(x, case.hw_shape)
        pairs.append((out, *torch.autograd.grad(out.square().sum(), x)))
    for what, found, expected in zip(('output', 'gradient of x'), *pairs):
        compare(found, expected, f'compiled {what}', 1e-7)


class _OnMap(nn.Module):
    """Attention on a map (B, C, H, W), as a backbone exports it."""

    def __init__(self, attn: BaseAttention) -> None:
        super().__init__()
        self.attn = attn.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        hw_shape = (x.shape[2], x.shape[3])
        return tokens_to_map(self.attn(map_to_tokens(x), hw_shape), hw_shape)


@ATTENTION_RULES.add
def exports(case: AttentionCase) -> None:
    """Check that torch.export takes and writes any size, or with any_export_size=False one."""
    if not hasattr(torch.compiler, 'is_exporting'):
        return
    model, channels = _OnMap(case.clone(torch.float64)), case.attn.embed_dims
    sizes = ((3, 12, 20), (1, 9, 14), (2, 5, 31))
    maps = [torch.randn(b, channels, h, w, dtype=torch.float64) for b, h, w in sizes]
    dims = {
        i: Dim(name, min=low, max=4096) for i, name, low in ((0, 'b', 1), (2, 'h', 4), (3, 'w', 4))
    }
    any_size = case.attn.any_export_size
    try:
        program = export(model, (maps[0],), dynamic_shapes=(dims,))
    except ValueError as error:
        if any_size or 'dynamic height' not in str(error):
            raise
        maps, program = maps[:1], export(model, (maps[0],))
    else:
        require(any_size, 'it exports with dynamic sizes, but any_export_size is False')
    content = io.BytesIO()
    torch.export.save(program, content)
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # of its buffer
        run = torch.export.load(content).module()
    for x in maps:
        compare(run(x), model(x), f'exported output for {tuple(x.shape)}')


@ATTENTION_RULES.add
def backbones(case: AttentionCase) -> None:
    """Check that a hierarchical backbone (RAVLT) and a plain one (ViT) take the attention."""
    check_backbone(RAVLT, [case.attn_cfg], arch=SMALL_RAVLT)
    size = (64, 80)
    check_backbone(ViT, [case.attn_cfg], arch=SMALL_VIT, img_size=size, with_cls_token=False)
