"""Counts against numbers worked out by hand."""

import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mmlinattn import __main__ as program
from mmlinattn.analysis import analyse
from mmlinattn.models.backbones import ViT
from mmlinattn.ops import use_backend

H, W, C, HEADS = 32, 48, 8, 2
N = (H // 4) * (W // 4)


class Tiny(nn.Module):
    """A strided convolution, a linear layer and one attention, written in ``style``."""

    def __init__(self, style: str = 'sdpa') -> None:
        super().__init__()
        self.style = style
        self.conv = nn.Conv2d(3, C, 4, stride=4)
        self.norm = nn.LayerNorm(C)
        self.body = nn.Module()
        self.body.qkv = nn.Linear(C, 3 * C, bias=False)
        self.body.unused = nn.Linear(C, C)
        if style == 'bmm':
            self.bias = nn.Parameter(torch.zeros(HEADS, N, N))

    def forward(self, image):
        x = self.norm(self.conv(image).flatten(2).transpose(1, 2))
        q, k, v = self.body.qkv(x).unflatten(-1, (3, HEADS, C // HEADS)).permute(2, 0, 3, 1, 4)
        if self.style == 'sdpa':
            return F.scaled_dot_product_attention(q, k, v)
        if self.style == 'matmul':
            return (q @ k.transpose(-2, -1)).softmax(-1) @ v
        if self.style == 'einsum':
            scores = torch.einsum('bhnd,bhmd->bhnm', q, k).softmax(-1)
            return torch.einsum('bhnm,bhmd->bhnd', scores, v)
        q, k, v = (t.flatten(0, 1) for t in (q, k, v))
        scores = torch.baddbmm(self.bias, q, k.transpose(1, 2))
        return torch.bmm(scores.softmax(-1), v)


@pytest.mark.parametrize('style', ['sdpa', 'matmul', 'einsum', 'bmm'])
def test_by_hand(style):
    cost = analyse(Tiny(style), (H, W))
    conv, linear, attention = N * 4 * 4 * 3 * C, N * C * 3 * C, 2 * N * N * C
    bias = HEADS * N * N if style == 'bmm' else 0
    assert cost.params == (4 * 4 * 3 * C + C) + 2 * C + 3 * C * C + (C * C + C) + bias
    assert cost.conv_linear == conv + linear
    assert cost.total == conv + linear + attention
    assert cost.by_module['conv'].total == conv
    assert cost.by_module['body'].conv_linear == linear
    assert cost.by_module['body.qkv'].params == 3 * C * C
    assert cost.by_module['body.unused'].total == 0
    assert cost.by_module['norm'].total == 0
    assert not cost.uncounted


def test_convolutions():
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding='same', groups=3), nn.ConvTranspose2d(6, 4, 2, stride=2)
    )
    cost = analyse(model, (H, W))
    assert cost.by_module['0'].total == H * W * 6 * 9
    assert cost.by_module['1'].total == H * W * 6 * 4 * 4
    assert cost.total == cost.conv_linear


def test_products_in_place():
    class InPlace(nn.Linear):
        def forward(self, image):
            x = image.flatten(1, 2)  # [1, 3 * H, W]
            x = torch.zeros(1, 3 * H, 3 * H).baddbmm_(x, x.mT)
            return x[0].new_zeros(len(x[0]), 5).addmm_(x[0], self.weight.t())

    cost = analyse(InPlace(3 * H, 5), (H, W))
    assert cost.conv_linear == 3 * H * 3 * H * 5
    assert cost.total == cost.conv_linear + 3 * H * 3 * H * W
    assert not cost.uncounted


def test_third_count_has_norms_and_resizing():
    model = nn.Sequential(
        nn.Conv2d(3, 4, 1),
        nn.BatchNorm2d(4),
        nn.BatchNorm2d(4, affine=False),
        nn.GroupNorm(2, 4),
        nn.LayerNorm(W),
        nn.Upsample(scale_factor=2, mode='bilinear'),
        nn.AdaptiveAvgPool2d(2),
        nn.Upsample(scale_factor=2),
        nn.GroupNorm(2, 4, affine=False),
        nn.LayerNorm(4, elementwise_affine=False),
    )
    cost, n = analyse(model, (H, W)), 4 * H * W
    found = [cost.by_module[str(i)].extended for i in range(10)]
    last = 4 * 4 * 4
    assert found == [3 * n, 2 * n, n, 5 * n, 5 * n, 16 * n, 4 * n, last, 4 * last, 4 * last]
    assert (cost.total, cost.extended) == (3 * n, sum(found))


def test_multihead_attention_is_not_opaque():
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn = nn.MultiheadAttention(16, 2, batch_first=True)

        def forward(self, image):
            x = F.adaptive_avg_pool2d(image.mean(1, keepdim=True), (10, 16))[:, 0]
            return self.attn(x, x, x, need_weights=False)[0]

    cost = analyse(Layer(), (H, W))
    assert cost.conv_linear == 4 * 10 * 16 * 16
    assert cost.total == cost.conv_linear + 2 * 10 * 10 * 16
    assert torch.backends.mha.get_fastpath_enabled()


def test_model_is_left_alone():
    model = Tiny().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    analyse(model, (H, W))
    assert model.training and not model._forward_hooks and not model.conv._forward_hooks
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_the_backend_of_the_user_changes_no_number():
    model = ViT(arch='deit-t', img_size=32, attn_cfg='RALA')
    costs = [analyse(model, (32, 32))]
    for backend in ('triton', 'reference'):
        with use_backend(backend):
            costs.append(analyse(model, (32, 32)))
    assert costs[0].total > costs[0].conv_linear and costs == [costs[0]] * 3


def test_runs_for_real_where_shapes_are_not_enough():
    class DataDependent(nn.Conv2d):
        def forward(self, image):
            return super().forward(image) if image.sum().item() == 0 else None

    assert analyse(DataDependent(3, 2, 1), (32, 32)).total == 32 * 32 * 3 * 2


def test_unknown_products_are_reported():
    class Inverse(nn.Module):
        def forward(self, image):
            return torch.linalg.inv(torch.eye(32) + image)

    cost = analyse(Inverse(), (32, 32))
    assert cost.total == 0
    assert list(cost.uncounted) == ['aten::linalg_inv_ex']


@pytest.mark.parametrize(
    ('shape', 'message'),
    [
        ((31, 64), r'at least 32x32 pixels, got \(31, 64\)'),
        ((64,), r'two positive integers, got \(64,\)'),
        ((64, 64, 3), 'two positive integers'),
        ((64, -64), 'two positive integers'),
        ((64.0, 64), 'two positive integers'),
        (64, 'two positive integers, got 64'),
    ],
)
def test_bad_shape(shape, message):
    with pytest.raises(ValueError, match=message):
        analyse(Tiny(), shape)


@pytest.fixture
def tool():
    """Runs the command line with these arguments."""
    return lambda *args: program.main(['analyze', 'complexity', *map(str, args)])


@pytest.fixture
def config(tmp_path):
    path = tmp_path / 'backbone.py'
    path.write_text(
        "model = dict(type='RAVLT', arch=dict(embed_dims=(16, 16, 32, 32), depths=(1, 1, 1, 1),"
        " num_heads=(1, 1, 2, 2)), norm_cfg=dict(type='BN'))\n"
    )
    return path


def test_tool(tool, config, tmp_path, capsys):
    out = tmp_path / 'cost.json'
    tool(config, '--shape', 64, 96, '--depth', 1, '--json', out)
    table = capsys.readouterr().out
    assert 'backbone, 64 x 96' in table
    assert 'stages' in table and 'stages.0' not in table
    released = json.loads(out.read_text())
    tool(*(config, '--shape', 64, 96, '--json', out), *('--cfg-options', 'model.attn_cfg=RALA'))
    linear = json.loads(out.read_text())
    assert linear['params'] == released['params']
    assert linear['conv_linear'] == released['conv_linear'] < linear['total']
    assert linear['total'] != released['total']


def test_tool_refuses_a_bad_shape(tool, config, error_of):
    assert 'at least 32x32' in error_of(tool, config, '--shape', 8, 96)
