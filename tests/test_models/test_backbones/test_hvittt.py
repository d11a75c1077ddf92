"""H-ViT³ and ViT³ against recorded tensors of the release, and a step of real gradient descent."""

from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F

from mmlinattn.checkpoints import CheckpointError
from mmlinattn.checkpoints.converters import convert
from mmlinattn.models.backbones import HViTTT, TransformerBlock
from mmlinattn.models.layers import TTTAttention, ttt
from mmlinattn.models.layers.ttt import _loss_sums
from mmlinattn.models.necks import RAVLTNeck
from mmlinattn.ops.common.rotary import Rotary, apply_rotary
from tests.recordings import assert_equals_recording, assert_near, below, load_case

PLAIN = 'TTTAttention'
# The recorded layers, in the place that the release gives them in its models.
LAYERS = {
    ('vittt', 'ttt'): ('blocks.0.attn.', 'backbone.layers.0.attn.'),
    ('vittt', 'ttt_rotary'): ('blocks.0.attn.', 'backbone.layers.0.attn.'),
    ('vittt', 'ttt_padded'): ('blocks.0.attn.', 'backbone.layers.0.attn.'),
    ('vittt_dense', 'dense'): ('layers.0.blocks.0.attn.', 'backbone.stages.0.0.attn.'),
    ('vittt', 'block'): ('layers.0.blocks.0.', 'backbone.stages.0.0.'),
    ('vittt', 'plain_block'): ('blocks.0.', 'backbone.layers.0.'),
}


@pytest.mark.parametrize('file, case', LAYERS)
def test_recorded_layer(file, case, golden):
    tensors, facts = load_case(golden, file, case)
    theirs, ours = LAYERS[file, case]
    channels, heads = tensors['in.x'].shape[-1], below(tensors, 'state.attn.') or tensors
    heads = heads['w1' if 'w1' in heads else 'state.w1'].shape[1]
    if case == 'block':
        layer = HViTTT.block(channels, heads, 2.0, 'TTTAttention')
    elif case == 'plain_block':
        layer = TransformerBlock(channels, heads, 2.0, PLAIN, eps=1e-5, cpe=True)
    else:
        layer = TTTAttention(channels, heads, rotary=case != 'ttt')

    def converted(state):
        return below(convert({theirs + k: v for k, v in state.items()}, 'vittt'), ours)

    assert_equals_recording(layer, tensors, facts, converted)


def test_recorded_backbone(golden):
    tensors, facts = load_case(golden, 'vittt_small', 'released')
    sizes, dims = facts['kwargs'], facts['kwargs']['dim']
    arch = dict(
        embed_dims=dims, depths=sizes['depths'], num_heads=[dim // 32 for dim in dims],
        mlp_ratios=sizes['mlp_ratio'],
    )  # fmt: skip
    model = HViTTT(arch).eval()
    state = {f'backbone.{k}': v for k, v in below(tensors, 'state.').items()}
    model.load_state_dict(below(convert(state, 'vittt'), 'backbone.'))
    image = tensors['in.x'].clone().requires_grad_()
    outs = model(image)
    assert_near(outs, [tensors[f'out.{i}'] for i in range(4)])
    sum(out.square().mean() for out in outs).backward()
    assert_near(image.grad, tensors['grad.x'], 1e-4)


def test_equals_a_step_of_gradient_descent(monkeypatch):
    """By autograd through the loss of the inner model, one image at a time, with a class token."""
    monkeypatch.setattr('mmlinattn.ops.common.numerics.CPU_CHUNK', 1)  # two chunks of tokens
    attn, (height, width) = TTTAttention(16, 2, rotary=True).double(), (7, 15)
    x = torch.randn(2, 1 + height * width, 16, dtype=torch.float64)
    for parameter in attn.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    parts = attn.in_proj(x).unflatten(-1, (9, 8)).transpose(1, 2)  # heads of q, of k, of v
    outs = []
    for i in range(2):
        q, k, v = (part.clone() for part in parts[i].split(3))
        for heads in (q, k):
            heads[:2] = apply_rotary(heads[None, :2], Rotary((7, 15), 8, 10000**0.75, 1, 2))
        w1, w2, w3 = (w.detach().requires_grad_() for w in (attn.linear1, attn.linear2, attn.conv))
        maps = [part[2, 1:].mT.unflatten(-1, (height, width)) for part in (q, k, v)]

        def gated(x, w1, w2):
            return (x @ w1) * F.silu(x @ w2)

        def convolved(x, w):
            return F.conv2d(x, w.view(8, 1, 3, 3), padding=1, groups=8)

        loss = -(gated(k[:2], w1, w2) * v[:2]).sum() / 3 / x.shape[1]
        loss = loss - (convolved(maps[1], w3) * maps[2]).sum() / 3 / (height * width)
        steps = torch.autograd.grad(loss, [w1, w2, w3])
        (w1, w2), w3 = (
            [w - s / (1 + s.norm(dim=-2, keepdim=True)) for w, s in zip((w1, w2), steps)],
            w3 - steps[2] / (1 + steps[2].norm(dim=-1, keepdim=True)),
        )
        local = F.pad(convolved(maps[0], w3).flatten(1).mT, (0, 0, 1, 0))
        outs.append(torch.cat([*gated(q[:2], w1, w2), local], -1))
    for record in (True, False):
        with torch.set_grad_enabled(record), monkeypatch.context() as patch:
            patch.setattr(ttt, '_loss_sums', Mock(wraps=_loss_sums))
            out = attn(x, (height, width), num_extra_tokens=1)
            assert ttt._loss_sums.call_count == (1 if record else 2)
        torch.testing.assert_close(out, attn.proj(torch.stack(outs)), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_step_of_many_tokens_under_autocast(dtype, monkeypatch):
    """Sums that exceed float16. The release divides before it sums, which loses small steps."""
    attn, hw, steps = TTTAttention(32, 1), (250, 256), {}

    def record(sums, mask, num_tokens, dim):
        step = sums / (3 * num_tokens)
        steps.setdefault(dim, []).append(step.double())
        return step / (1 + step.norm(dim=dim, keepdim=True))

    monkeypatch.setattr('mmlinattn.models.layers.ttt._step', record)
    x = torch.randn(1, 64000, 32).to(dtype).float()
    with torch.no_grad():
        attn.in_proj.bias += 3
        attn.in_proj.bias[-64:-32] *= 100  # values
        for parameter in attn.parameters():
            parameter.copy_(parameter.to(dtype))
        with torch.autocast('cpu', dtype):
            attn(x, hw)
    with torch.autocast('cpu', dtype):
        attn(x, hw)  # for gradients, in one piece
    with torch.no_grad():
        attn.double()(x.double(), hw)
    for in_chunks, whole, exact in steps.values():
        assert (in_chunks - exact).norm() < 1e-2 * exact.norm()
        assert (whole - exact).norm() < 1e-2 * exact.norm()


def test_convolution_is_summed_in_float32():
    attn, hw = TTTAttention(16, 2), (5, 7)
    x = torch.randn(2, 35, 16)
    layout = attn.token_layout(x, hw, None, None, 0)
    parts = [part.bfloat16() for part in torch.randn(3, 2, 35, 8)]
    with torch.autocast('cpu', torch.bfloat16):
        found = attn._convolved(*parts, layout)
    exact = attn.double()._convolved(*(part.double() for part in parts), layout)
    assert (found - exact).norm() < 1e-5 * exact.norm()


def test_norm_of_a_released_classifier():
    """A batch norm of all tokens before their mean in H-ViT³, the last layer norm in ViT³."""
    names = ('weight', 'bias', 'running_mean', 'running_var')
    norm = {f'norm.{name}': torch.rand(16) for name in names}
    norm['norm.num_batches_tracked'] = torch.tensor(1)
    neck, x = RAVLTNeck(16, None), torch.randn(3, 16, 4, 5)
    neck.load_state_dict(below(convert(norm, 'vittt'), 'neck.'))
    x_norm = (x - x.mean((0, 2, 3), keepdim=True)) / x.var((0, 2, 3), False, True).sqrt()
    expected = x_norm.mean((2, 3)) * norm['norm.weight'] + norm['norm.bias']
    torch.testing.assert_close(neck.train()((x,))[0], expected, rtol=1e-4, atol=1e-4)
    plain = {**norm, 'blocks.0.norm1.weight': norm['norm.weight']}
    assert 'backbone.norm.weight' in convert(plain, 'vittt')


def test_a_damaged_file_is_named():
    weights = {'blocks.0.attn.qkv.weight': torch.zeros(72, 16)}
    with pytest.raises(CheckpointError, match='in_proj.weight of 72 rows does not fit the w3'):
        convert(weights, 'vittt')
