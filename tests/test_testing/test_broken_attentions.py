"""Wrong attentions: each must break the rule that is about its fault."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mmlinattn.models.backbones import RAVLT, Swin
from mmlinattn.models.layers import (
    BaseAttention,
    TokenLayout,
    map_to_tokens,
    tokens_to_map,
)
from mmlinattn.ops.common.numerics import accumulation_dtype, no_autocast
from mmlinattn.testing import ATTENTION_RULES, check_attention, check_backbone
from mmlinattn.testing.attention import SMALL_RAVLT
from tests import more_rules


class Sound(BaseAttention):
    """Linear attention with features elu + 1, which keeps every rule."""

    backends = ('auto',)

    def features(self, q, k, layout):
        return F.elu(q) + 1, F.elu(k) + 1

    def sums(self, k, v):
        return k.mT @ v, k.sum(2)[..., None]  # [B, H, d, d], [B, H, d, 1]

    def attend(self, q, k, v, layout):
        dtype = accumulation_dtype(v.dtype)
        with no_autocast(q):
            q, k = self.features(q.to(dtype), k.to(dtype), layout)
            if layout.key_padding_mask is not None:
                k = k.masked_fill(layout.key_padding_mask[:, None, :, None], 0)
            kv, total = self.sums(k, v.to(dtype))
            return (q @ kv / (q @ total + 1e-6)).to(v.dtype)


class FrozenParameter(Sound):
    """A fixed random projection, which is not to learn."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.fixed = nn.Parameter(torch.randn(self.head_dim, self.head_dim), requires_grad=False)

    def features(self, q, k, layout):
        fixed = self.fixed.to(q.dtype)
        return super().features(q @ fixed, k @ fixed, layout)


class Drops(Sound):
    """Dropout in training, and an attend() that calls itself for parts of the heads."""

    def attend(self, q, k, v, layout):
        if q.shape[1] == 1:
            return F.dropout(super().attend(q, k, v, layout), 0.1, self.training)
        heads = zip(*(x.split(1, 1) for x in (q, k, v)))
        return torch.cat([self.attend(*head, layout) for head in heads], 1)


class IgnoresMask(Sound):
    def attend(self, q, k, v, layout):
        return super().attend(q, k, v, layout._replace(key_padding_mask=None))


class CountsPadding(Sound):
    def attend(self, q, k, v, layout):
        return super().attend(q, k, v, layout) * q.shape[2] / 30


class LeaksBetweenImages(Sound):
    def sums(self, k, v):
        kv, total = super().sums(k, v)
        return kv + 0.01 * kv.mean(0, keepdim=True), total


class DependsOnBatchSize(Sound):
    def sums(self, k, v):
        kv, total = super().sums(k, v)
        return kv / len(k), total


class NewNoise(Sound):
    def features(self, q, k, layout):
        return q.exp() * torch.rand_like(q[:1, :1, :1]), k.exp()


class Convolved(Sound):
    """Keys with a convolution over the map."""

    needs_map = True
    supports_extra_tokens = False

    def __init__(self, embed_dims, num_heads, **kwargs):
        super().__init__(embed_dims, num_heads, **kwargs)
        self.conv = nn.Conv2d(embed_dims, embed_dims, 3, padding=1, groups=embed_dims, bias=False)

    def map_shape(self, layout):
        return layout.hw_shape

    def attend(self, q, k, v, layout):
        x = v.transpose(1, 2).flatten(2)
        if layout.key_padding_mask is not None:
            x = x.masked_fill(layout.key_padding_mask[..., None], 0)
        x = map_to_tokens(self.conv(tokens_to_map(x, self.map_shape(layout))))
        return super().attend(q, k, v, layout) + self.split_heads(x)


class WrongOrder(Convolved):
    def map_shape(self, layout):
        return layout.hw_shape[::-1]


class FailsOnOddMaps(Convolved):
    def attend(self, q, k, v, layout):
        height = layout.hw_shape[0]
        x = tokens_to_map(v.transpose(1, 2).flatten(2), layout.hw_shape)
        cells = F.avg_pool2d(x, 2, ceil_mode=height > 4)
        out = super().attend(q, k, v, layout)
        return out + 0 * cells.mean() if cells.numel() else out


class NotFiniteInHalf(Sound):
    def features(self, q, k, layout):
        q, k = super().features(q, k, layout)
        return (q.half() * 3e4).to(q.dtype), (k.half() * 3e4).to(k.dtype)


class SumsInHalf(Sound):
    """Right for 30 tokens, and by half wrong for 4,096."""

    def attend(self, q, k, v, layout):
        q, k = self.features(q, k, layout)
        if layout.key_padding_mask is not None:
            k = k.masked_fill(layout.key_padding_mask[:, None, :, None], 0)
        return (q @ (k.mT @ v) / (q @ k.sum(2)[..., None] + 1e-6)).to(v.dtype)


class SoftmaxOfNothing(Sound):
    def attend(self, q, k, v, layout):
        logits = q @ k.mT / self.head_dim**0.5
        if layout.key_padding_mask is not None:
            logits = logits.masked_fill(layout.key_padding_mask[:, None, None], -torch.inf)
        return logits.softmax(-1).to(v.dtype) @ v


class DividesByNearlyZero(Sound):
    """A bias for images with real keys, whose own gradient is infinity times 0 without any."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.bias = nn.Parameter(torch.ones(()))

    def attend(self, q, k, v, layout):
        out = super().attend(q, k, v, layout)
        mask = layout.key_padding_mask
        real = (
            out.new_ones(()) if mask is None else (~mask).sum(1).to(out.dtype)[:, None, None, None]
        )
        bias = self.bias.to(out.dtype) * real
        return out + bias / real.clamp(min=torch.finfo(out.dtype).tiny)


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0]  # 2 is missing


class WrongBackward(Sound):
    def features(self, q, k, layout):
        return Square.apply(q), Square.apply(k)


class Detaches(Sound):
    def features(self, q, k, layout):
        return super().features(q, k.detach(), layout)


class UnusedParameter(Sound):
    def __init__(self, embed_dims, num_heads, **kwargs):
        super().__init__(embed_dims, num_heads, **kwargs)
        self.scale = nn.Parameter(torch.ones(num_heads))


class BreaksGraph(Sound):
    def attend(self, q, k, v, layout):
        if q.abs().max().item() > 1e6:
            raise ValueError('large queries')
        return super().attend(q, k, v, layout)


class ChangesDtype(Sound):
    def attend(self, q, k, v, layout):
        return super().attend(q, k, v, layout).float()

    def project_out(self, out, q):
        return F.linear(out, self.proj.weight.float(), self.proj.bias.float())


class ChangesX(Sound):
    def forward(self, x, *args, **kwargs):
        with torch.no_grad():
            x += 1
        return super().forward(x, *args, **kwargs)


class NeedsContiguous(Sound):
    def forward(self, x, *args, **kwargs):
        x.view(-1)
        return super().forward(x, *args, **kwargs)


class IgnoresQueryPos(Sound):
    def project(self, x, query_pos, layout):
        return super().project(x, None, layout)


class AddsQueryPosToValues(Sound):
    def project(self, x, query_pos, layout):
        return super().project(x if query_pos is None else x + query_pos, None, layout)


class DropsExtraTokens(Sound):
    def attend(self, q, k, v, layout):
        if layout.num_extra_tokens:
            k, v = (layout.split_extra(t, 2)[1] for t in (k, v))
            layout = layout.without_extra_tokens()
        return super().attend(q, k, v, layout)


class ReadsPaddedExtraTokens(Sound):
    def attend(self, q, k, v, layout):
        mask = layout.key_padding_mask
        if mask is not None:
            extra = torch.arange(q.shape[2]) < layout.num_extra_tokens
            layout = layout._replace(key_padding_mask=mask & ~extra)
        return super().attend(q, k, v, layout)


class SkipsExtraQueries(Sound):
    def attend(self, q, k, v, layout):
        extra = layout.num_extra_tokens
        out = super().attend(q, k, v, layout)
        return torch.cat([v[:, :, :extra], out[:, :, extra:]], 2)


class OrdersExtraTokens(Sound):
    def features(self, q, k, layout):
        q, k = super().features(q, k, layout)
        first = torch.arange(k.shape[2]) == 0
        return q, k * (1 + first[:, None] * bool(layout.num_extra_tokens))


class NoChecks(Sound):
    def token_layout(self, x, hw_shape, *args):
        return TokenLayout(tuple(hw_shape))


class StateOutside(Sound):
    def __init__(self, embed_dims, num_heads, **kwargs):
        super().__init__(embed_dims, num_heads, **kwargs)
        self.direction = torch.randn(embed_dims // num_heads)

    def features(self, q, k, layout):
        shift = self.direction.to(q)
        return super().features(q + shift, k, layout)


class FixedSize(Sound):
    def attend(self, q, k, v, layout):
        if layout.hw_shape[0] > 10:
            return super().attend(q, k, v, layout)
        return super().attend(q, k, v, layout) * 2


class RejectsOptions(Sound):
    backbone_options = ('gate',)

    def __init__(self, embed_dims, num_heads, proj_drop=0.0):
        super().__init__(embed_dims, num_heads, proj_drop=proj_drop)


class WithoutDefault(Sound):
    def __init__(self, embed_dims, num_heads, width, **kwargs):
        super().__init__(embed_dims, num_heads, **kwargs)


class Unregistered(Sound):
    pass


class PositionsOfQueriesAlone(Sound):
    def project(self, x, query_pos, layout):
        _, k, v, gate = super().project(x, None, layout)
        return super().project(x, query_pos, layout)[0], k, v, gate


class PositionsDoNotLearn(Sound):
    def project(self, x, query_pos, layout):
        return super().project(x, None if query_pos is None else query_pos.detach(), layout)


class LeaksInTraining(Sound):
    def attend(self, q, k, v, layout):
        out = super().attend(q, k, v, layout)
        return out + out.mean(0, keepdim=True) if self.training else out


class MixesPackedImages(Sound):
    def attends_packed(self):
        return True


class ConvolvesUnsaid(Convolved):
    needs_map = False


class ReturnsFloat32(Sound):
    """In a module of half types."""

    def attend(self, q, k, v, layout):
        out = super().attend(q, k, v, layout)
        return out if out.dtype == torch.float64 else out.float()


BROKEN = [
    (WithoutDefault, 'constructor'), (Unregistered, 'registered'),
    (ChangesDtype, 'shape_and_dtype'), (ChangesX, 'shape_and_dtype'),
    (NeedsContiguous, 'strides'), (WrongBackward, 'gradients'),
    (Detaches, 'gradients'), (UnusedParameter, 'gradients'), (IgnoresQueryPos, 'query_pos'),
    (AddsQueryPosToValues, 'query_pos'),
    (IgnoresMask, 'padding'), (CountsPadding, 'padded_map'), (WrongOrder, 'padded_map'),
    (SoftmaxOfNothing, 'padding'), (DividesByNearlyZero, 'padding'),
    (LeaksBetweenImages, 'batch_independence'),
    (PositionsOfQueriesAlone, 'query_pos'), (PositionsDoNotLearn, 'query_pos'),
    (LeaksInTraining, 'batch_independence'), (MixesPackedImages, 'packed_images'),
    (ConvolvesUnsaid, 'permutation'), (ReturnsFloat32, 'half_module'),
    (DependsOnBatchSize, 'batch_independence'), (NewNoise, 'batch_independence'),
    (NotFiniteInHalf, 'half_precision'), (SumsInHalf, 'half_precision'),
    (FailsOnOddMaps, 'odd_maps'),
    (ReadsPaddedExtraTokens, 'extra_tokens'),
    (DropsExtraTokens, 'extra_tokens'), (SkipsExtraQueries, 'extra_tokens'),
    (OrdersExtraTokens, 'extra_tokens'), (NoChecks, 'argument_errors'),
    (StateOutside, 'state_dict'), (BreaksGraph, 'compiles'), (FixedSize, 'exports'),
    (RejectsOptions, 'backbones'),
]  # fmt: skip
SLOW = ('registered', 'compiles', 'exports', 'backbones')  # the classes here are not registered
QUICK = [rule for rule in ATTENTION_RULES if rule not in SLOW]


def findings(cls: type, rule: str) -> str:
    try:
        check_attention(cls, rules=QUICK if rule in QUICK else [rule])
    except AssertionError as error:
        return str(error)
    return ''


class Asserts(Sound):
    def attend(self, q, k, v, layout):
        raise AssertionError


def test_an_assertion_without_a_text_gives_its_place():
    assert 'found: raise AssertionError (line' in findings(Asserts, 'shape_and_dtype')


@pytest.mark.parametrize('cls', [Sound, Convolved, FrozenParameter, Drops])
def test_sound_attentions_keep_the_rules(cls):
    check_attention(cls, rules=QUICK)
    more_rules.check_attention(cls)


def test_a_frozen_parameter_of_a_backbone_does_not_learn():
    check_backbone(RAVLT, [FrozenParameter], rules=['parameters_learn'], arch=SMALL_RAVLT)


@pytest.mark.parametrize('cls, rule', BROKEN, ids=[cls.__name__ for cls, _ in BROKEN])
def test_broken_attentions_are_caught(cls, rule):
    statement = ' '.join(ATTENTION_RULES[rule].__doc__.split())
    assert f'\n{rule}: {statement}' in findings(cls, rule)


def test_every_rule_has_a_broken_attention():
    assert {*ATTENTION_RULES} == {rule for _, rule in BROKEN}


def test_message():
    with pytest.raises(AssertionError) as error:
        check_attention(IgnoresMask, rules=['padding', 'strides', 'registered'])
    text = str(error.value)
    assert text.startswith('IgnoresMask breaks rules.\n\nregistered: ') and 'strides' not in text
    assert 'IgnoresMask is not in MODELS of MMEngine' in text
    assert 'output of a real token: ' in text and 'Greatest absolute difference' in text
    with pytest.raises(AssertionError) as error:
        check_attention(WithoutDefault, rules=['constructor', 'strides'])
    assert "missing 1 required positional argument: 'width'" in str(error.value)
    assert 'The other rules are not checked' in str(error.value)


@pytest.mark.parametrize(
    'options, error, message',
    [
        (dict(cls=Sound(8, 2)), TypeError, 'cls must be a class or its name, got a Sound'),
        (dict(rules='strides'), ValueError, "rules must be a list of names, got 'strides'"),
        (dict(rules=['stride']), ValueError, "no rule 'stride'; did you mean strides"),
    ],
)
def test_arguments_of_the_check(options, error, message):
    with pytest.raises(error, match=message):
        check_attention(**dict(dict(cls=Sound), **options))


def test_attentions_of_a_backbone_check_are_a_list():
    with pytest.raises(TypeError, match="attentions must be a list, got 'RALA'"):
        check_backbone(Swin, 'RALA')


def test_expected_failures():
    reason = dict(padding='in a test')
    check_attention(IgnoresMask, rules=['padding'], expected_failures=reason)
    with pytest.raises(AssertionError, match='it holds, but expected_failures names it'):
        check_attention(Sound, rules=['padding'], expected_failures=reason)
