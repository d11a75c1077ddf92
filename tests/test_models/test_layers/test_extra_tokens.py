"""Extra tokens (class token, registers): queries and keys without a position on the map."""

import pytest
import torch
from torch import Tensor

from mmlinattn.models.layers import BaseAttention, build_attention
from mmlinattn.ops.common.rotary import Rotary
from mmlinattn.ops.linear import _unsupported_reason
from mmlinattn.ops.linear.options import LinearOptions

HW, EXTRA, CHANNELS, HEADS = (4, 5), 2, 16, 2
NUM = EXTRA + 20
BIASES = ('key', 'query')  # of AgentAttention


def tokens(n: int = NUM) -> Tensor:
    return torch.randn(2, n, CHANNELS, dtype=torch.float64)


def padding() -> Tensor:
    mask = torch.zeros(2, NUM, dtype=torch.bool)
    mask[0, -5:] = True
    mask[1, 0] = True
    return mask


def test_order_of_extra_tokens_with_learnt_weights():
    """Exchange two extra tokens with the same learnt weight."""
    options = dict(type='RALA', kv_augmentation='learnable', num_tokens=NUM)
    attn = build_attention(options, CHANNELS, HEADS).double()
    torch.nn.init.normal_(attn.token_logits)
    attn.token_logits.data[:, 1] = attn.token_logits.data[:, 0]
    order = [1, 0, *range(EXTRA, NUM)]
    x = tokens()
    out, other = (attn(t, HW, num_extra_tokens=EXTRA) for t in (x, x[:, order]))
    torch.testing.assert_close(other, out[:, order])


def by_definition(attn: BaseAttention, similarity: Tensor, x: Tensor) -> Tensor:
    """Compute the output from a similarity (B, heads, E + N, E + N), normalised per row."""
    v = attn.split_heads(attn.in_proj(x).chunk(3, -1)[2])
    out = (similarity / similarity.sum(-1, keepdim=True)) @ v
    return attn.proj(out.transpose(1, 2).flatten(2))


def assert_same(attn: BaseAttention, expected, x: Tensor, mask: Tensor, hw=HW) -> None:
    """Compare outputs and gradients of real tokens."""
    x = x.requires_grad_()
    out = attn(x, hw, key_padding_mask=mask, num_extra_tokens=EXTRA)
    weight = torch.randn_like(out) * ~mask[..., None]
    parameters = [x, *attn.parameters()]
    wanted = expected(x)
    torch.testing.assert_close(out[~mask], wanted[~mask], rtol=1e-6, atol=1e-7)
    gradients = [torch.autograd.grad((o * weight).sum(), parameters) for o in (out, wanted)]
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('kind', ['SoftmaxAttention', 'LinearAttention'])
def test_extra_tokens_equal_map_tokens(kind):
    options = {} if kind == 'SoftmaxAttention' else dict(feature_map='elu+1', eps=0.0)
    attn = build_attention(dict(type=kind, **options), CHANNELS, HEADS).double()
    mask = padding()

    def expected(x):
        q, k = (attn.split_heads(t) for t in attn.in_proj(x).chunk(3, -1)[:2])
        if kind == 'SoftmaxAttention':
            similarity = (q @ k.mT / 8**0.5).exp()
        else:
            similarity = (torch.nn.functional.elu(q) + 1) @ (torch.nn.functional.elu(k) + 1).mT
        return by_definition(attn, similarity.masked_fill(mask[:, None, None], 0), x)

    assert_same(attn, expected, tokens(), mask)


@pytest.mark.parametrize(
    'groups, backend',
    [('chebyshev', 'reference'), ('chebyshev', 'tile'), ('chebyshev', 'sat'), ('log', 'sat')],
)
@pytest.mark.parametrize('weights', ['stick', 'fixed', 'truncated', 'softmax'])
def test_ripple_extra_tokens_are_in_the_last_group(groups, backend, weights):
    attn = build_attention(
        dict(
            type='RippleAttention', max_distance=2, weights=weights, groups=groups, eps=1e-12,
            feature_map='elu+1', backend=backend,
        ),
        CHANNELS,
        HEADS,
    ).double()  # fmt: skip
    mask, (height, width) = padding(), HW
    place = torch.stack(torch.meshgrid(torch.arange(height), torch.arange(width), indexing='ij'))
    place = place.flatten(1)
    distance = (place[:, :, None] - place[:, None]).abs().amax(0)  # [N, N]
    group = torch.full((NUM, NUM), 2)
    group[EXTRA:, EXTRA:] = distance.clamp(
        max=2
    )  # with R = 2 both kinds have the assert_same groups

    def expected(x):
        q, k, v = (attn.split_heads(t) for t in attn.in_proj(x).chunk(3, -1))
        similarity = (torch.nn.functional.elu(q) + 1) @ (torch.nn.functional.elu(k) + 1).mT
        ring = attn.spatial_weights(v).gather(-1, group.expand(2, HEADS, -1, -1))
        ring = torch.cat([torch.ones_like(ring[:, :, :EXTRA]), ring[:, :, EXTRA:]], 2)
        return by_definition(attn, (similarity * ring).masked_fill(mask[:, None, None], 0), x)

    assert_same(attn, expected, tokens(), mask)


def test_rala_rotates_and_convolves_map_tokens_only():
    attn = build_attention(dict(type='RALA', eps=0.0), CHANNELS, HEADS).double()
    mask = padding()

    def rotated(x):
        rows, columns = (t.flatten() for t in torch.meshgrid(*map(torch.arange, HW), indexing='ij'))
        turns = []
        for place in (rows, columns):
            angle = torch.cat([torch.zeros(EXTRA), place]).double()  # head dim 8: angles 1, 1e-4
            turns += [angle, angle * 1e-4]
        angle = torch.stack(turns, -1)
        pairs = torch.view_as_complex(x.unflatten(-1, (4, 2)).contiguous())
        return torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).flatten(-2)

    def expected(x):
        q, k, v, gate = attn.in_proj(x).chunk(4, -1)
        lepe = v.masked_fill(mask[..., None], 0)[:, EXTRA:].mT.unflatten(-1, HW)
        lepe = torch.cat([torch.zeros(2, EXTRA, CHANNELS), attn.lepe(lepe).flatten(2).mT], 1)
        q, k, v = (attn.split_heads(t) for t in (q, k, v))
        q, k = torch.nn.functional.elu(q) + 1, torch.nn.functional.elu(k) + 1
        out = torch.zeros_like(v)
        for image in range(2):
            real = ~mask[image]
            mean = q[image][:, real].mean(1, keepdim=True)
            scores = (mean * k[image][:, real]).sum(-1) / 8**0.5
            keys = k[image][:, real] * (real.sum() * scores.softmax(-1))[..., None]
            below = (q[image] @ keys.mT).sum(-1, keepdim=True)
            turned = rotated(k[image])[:, real] * (real.sum() * scores.softmax(-1))[..., None]
            out[image] = rotated(q[image]) @ turned.mT @ v[image][:, real] / below
        return attn.proj(gate * (out.transpose(1, 2).flatten(2) + lepe))

    assert_same(attn, expected, tokens(), mask)


def test_anchors_are_pooled_from_map_tokens_only():
    attn = build_attention(dict(type='RWGKP', num_anchors=4), CHANNELS, HEADS).double()
    x = tokens()
    q = attn.split_heads(attn.in_proj(x).chunk(3, -1)[0])
    maps = q[:, :, EXTRA:].mT.unflatten(-1, HW)  # [B, H, d, 4, 5]
    cells = [
        maps[..., r, c].mean((-2, -1))
        for r in (slice(2), slice(2, 4))
        for c in (slice(3), slice(2, 5))
    ]
    of_walk = torch.stack(cells, 2)
    found = []
    attn.anchors, original = lambda *args: found.append(original(*args)) or found[-1], attn.anchors
    attn(x, HW, num_extra_tokens=EXTRA)
    torch.testing.assert_close(found[0][0], of_walk)


def test_spatial_reduction_of_map_tokens_only():
    attn = build_attention(dict(type='SpatialReductionAttention', sr_ratio=2), CHANNELS, HEADS)
    attn, mask = attn.double(), padding()
    mask[0, -5:] = False  # this cell is padded in part

    def expected(x):
        cells = attn.sr(x.masked_fill(mask[..., None], 0)[:, EXTRA:].mT.unflatten(-1, HW))
        keys = torch.cat([x[:, :EXTRA], attn.norm(cells.flatten(2).mT)], 1)
        of_keys = torch.cat([mask[:, :EXTRA], torch.zeros(2, 4, dtype=torch.bool)], 1)
        q = attn.split_heads(attn.in_proj(x).chunk(3, -1)[0])
        k, v = (attn.split_heads(t) for t in attn.in_proj(keys).chunk(3, -1)[1:])
        weights = (q @ k.mT / 8**0.5).masked_fill(of_keys[:, None, None], float('-inf')).softmax(-1)
        return attn.proj((weights @ v).transpose(1, 2).flatten(2))

    assert_same(attn, expected, tokens(), mask)


@pytest.mark.parametrize('kind', ['InLineAttention', 'PolaFormerAttention', 'VSSDAttention'])
def test_convolutions_skip_extra_tokens(kind):
    """Test kernels of one place, without which extra tokens are tokens of the map."""
    attn = build_attention(kind, CHANNELS, HEADS).double()
    if kind == 'VSSDAttention':
        conv = attn.conv
    else:
        conv = attn.local_weights[-1] if kind == 'InLineAttention' else attn.lepe
    torch.nn.init.zeros_(conv.weight)
    torch.nn.init.zeros_(conv.bias)
    if kind == 'VSSDAttention':
        conv.weight.data[:, 0, 1, 1] = 1
    mask, x = padding(), tokens()
    out = attn(x, HW, key_padding_mask=mask, num_extra_tokens=EXTRA)
    expected = attn(x, (1, NUM), key_padding_mask=mask)
    torch.testing.assert_close(out[~mask], expected[~mask])


def test_agents_are_pooled_from_map_tokens_only():
    attn = build_attention(
        dict(type='AgentAttention', num_agents=4, lepe=0), CHANNELS, HEADS
    ).double()
    mask = padding()
    for parameter in attn.parameters():
        torch.nn.init.normal_(parameter)

    def expected(x):
        q, k, v = (attn.split_heads(t) for t in attn.in_proj(x).chunk(3, -1))
        biases = [torch.nn.functional.pad(attn._bias(n, HW, q)[0], (EXTRA, 0)) for n in BIASES]
        out = torch.zeros_like(v)
        for image in range(2):
            real = ~mask[image]
            on_map = real[EXTRA:].view(HW)
            maps = q[image, :, EXTRA:].unflatten(1, HW)
            agents, used = [], []
            for m in range(4):
                cell = (slice(2 * (m // 2), 2 * (m // 2) + 2), slice(2 * (m % 2), 2 * (m % 2) + 3))
                if on_map[cell].any():
                    agents.append(maps[(slice(None), *cell)][:, on_map[cell]].mean(1))
                    used.append(m)
            agents = torch.stack(agents, 1)
            logits = agents @ k[image][:, real].mT / 8**0.5 + biases[0][:, used][:, :, real]
            collected = logits.softmax(-1) @ v[image][:, real]
            logits = q[image] @ agents.mT / 8**0.5 + biases[1][:, used].mT
            out[image] = logits.softmax(-1) @ collected
        return attn.proj(out.transpose(1, 2).flatten(2))

    assert_same(attn, expected, tokens(), mask)


@pytest.mark.parametrize('extra', [-1, 1.0, None, True])
def test_invalid_number_of_extra_tokens(extra):
    attn = build_attention('SoftmaxAttention', CHANNELS, HEADS)
    with pytest.raises(ValueError, match=r'num_extra_tokens must be .* got'):
        attn(torch.randn(1, 21, CHANNELS), HW, num_extra_tokens=extra)


def test_more_extra_tokens_than_tokens():
    attn = build_attention('SoftmaxAttention', CHANNELS, HEADS)
    with pytest.raises(ValueError, match='20 positions but x has 19 tokens; a class token'):
        attn(torch.randn(1, 21, CHANNELS), HW, num_extra_tokens=2)


def test_triton_does_not_support_rotary_with_extra_tokens():
    """Test the reason: tables of the Triton kernels have no row for extra tokens."""
    q = torch.randn(1, 2, 7, 16)
    for extra, reason in ((0, None), (1, 'extra tokens')):
        rotary = Rotary((2, 3), 16, num_extra_tokens=extra)
        found = _unsupported_reason(q, q, LinearOptions(None, 1e-6, 'elu+1', rotary))
        assert reason in found if reason else 'extra tokens' not in str(found)


def test_two_rotary_positions_raise():
    with pytest.raises(ValueError, match='rotary=True cannot be combined'):
        build_attention(
            dict(type='LinearAttention', position='RotaryPosition', rotary=True), CHANNELS, HEADS
        )
