"""MLLA's attention against its N x N definition and recorded tensors of the release."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mmlinattn.models.layers import MLLAAttention
from mmlinattn.ops import BackendError, Rotary, linear_attention
from tests.recordings import assert_equals_recording, load_case

HW, CHANNELS, HEADS = (3, 5), 24, 3  # the boundary of rows and columns lies within head 1


def turn(x: Tensor, hw=HW) -> Tensor:
    """Rotate (B, N, C) over all channels, pair by pair; extra tokens before the map keep still."""
    extra, x = x[:, : x.shape[1] - hw[0] * hw[1]], x[:, x.shape[1] - hw[0] * hw[1] :]
    quarter = x.shape[-1] // 4
    place = torch.cartesian_prod(torch.arange(hw[0]), torch.arange(hw[1]))
    out = []
    for pair in range(2 * quarter):
        axis, t = divmod(pair, quarter)
        angle = place[:, axis].double() * 10000.0 ** (-t / quarter)
        a, b = x[..., 2 * pair], x[..., 2 * pair + 1]
        out += [a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()]
    return torch.cat([extra, torch.stack(out, -1)], 1)


def definition(attn: MLLAAttention, x: Tensor, keep: Tensor, query_pos=0.0) -> Tensor:
    """``q~_i sum_j k~_j v_j / n / (q_i . mean(k) + 1e-6) + dwconv(v)`` for one image at a time."""
    q, k = (F.elu(t) + 1 for t in attn.in_proj(x + query_pos).chunk(2, -1))
    similarity = [t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in (q, k, turn(q), turn(k), x)]
    q, k, q_turned, k_turned, v = similarity
    out = []
    for i, real in enumerate(keep):
        n = real.sum()
        norm = q[i] @ k[i][:, real].mean(1, keepdim=True).mT + 1e-6
        out.append(q_turned[i] @ k_turned[i][:, real].mT @ v[i][:, real] / n / norm)
    out = torch.stack(out).transpose(1, 2).flatten(2)
    count = HW[0] * HW[1]
    maps = (x * keep[..., None])[:, -count:].mT.unflatten(-1, HW)
    local = F.conv2d(maps, attn.lepe.weight, attn.lepe.bias, padding=1, groups=CHANNELS)
    return out + F.pad(local.flatten(2).mT, (0, 0, x.shape[1] - count, 0))


@pytest.mark.parametrize('extra', [0, 2])
def test_equals_its_definition(extra):
    attn, count = MLLAAttention(CHANNELS, HEADS).double(), extra + HW[0] * HW[1]
    x, query_pos, weight = torch.randn(3, 2, count, CHANNELS, dtype=torch.float64)
    mask = torch.zeros(2, count, dtype=torch.bool)
    mask[0, -5:] = True
    results = []
    for compute in (
        lambda x: attn(x, HW, query_pos, mask, num_extra_tokens=extra),
        lambda x: definition(attn, x, ~mask, query_pos),
    ):
        leaf = x.clone().requires_grad_()
        out = compute(leaf)
        loss = (out * weight)[~mask].sum()
        results.append([out[~mask], *torch.autograd.grad(loss, [leaf, *attn.parameters()])])
    torch.testing.assert_close(*results, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize('case', ['attention', 'attention_padded'])
def test_recorded_outputs_and_gradients(golden, case):
    def ours(state):
        return {k.replace('qk.', 'in_proj.'): v for k, v in state.items() if 'rope' not in k}

    assert_equals_recording(MLLAAttention(16, 2), *load_case(golden, 'mlla', case), ours)


@pytest.mark.parametrize('dims, heads', [(18, 3), (12, 4)])
def test_channels_that_rotary_position_cannot_split(dims, heads):
    message = (
        f'a multiple of 4 channels and an even number per head .* got {dims} channels in {heads}'
    )
    with pytest.raises(ValueError, match=message):
        MLLAAttention(dims, heads)
    MLLAAttention(dims, heads, rotary=False)
    q = torch.rand(1, heads, 15, dims // heads)
    with pytest.raises(ValueError, match=message):
        linear_attention(q, q, q, rotary=Rotary(HW, dims // heads, num_heads=heads))


def test_other_errors():
    with pytest.raises(
        ValueError, match='embed_dims=16 must be a positive multiple of num_heads=3'
    ):
        MLLAAttention(16, 3)
    with pytest.raises(ValueError, match="MLLAAttention does not support gate, got 'proj'"):
        MLLAAttention(16, 2, gate='proj')
    q = torch.rand(1, 2, 15, 8)
    with pytest.raises(ValueError, match='rotary.num_heads is 4, but q has 2 heads'):
        linear_attention(q, q, q, rotary=Rotary(HW, 8, num_heads=4))
    with pytest.raises(BackendError, match='over all channels, before the heads, has no kernel'):
        linear_attention(q, q, q, rotary=Rotary(HW, 8, num_heads=2), backend='triton')
