"""MLLA against its definition in plain torch, recorded tensors of the release, and bad input."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mmlinattn.checkpoints.converters import convert
from mmlinattn.models.backbones import MLLA
from mmlinattn.models.backbones.mlla import MLLABlock
from tests.recordings import assert_equals_recording, assert_near, below, load_case

SMALL = dict(embed_dims=(8, 16, 24, 32), depths=(1, 2, 1, 1), num_heads=(1, 2, 3, 4), mlp_ratios=2)


class Definition:
    """The formulas of the paper and its code on channels-first maps, by the weights of a model."""

    def __init__(self, model: MLLA) -> None:
        self.model, self.weights = model, dict(model.named_parameters())
        self.buffers = dict(model.named_buffers())

    def conv(self, x: Tensor, name: str, stride: int = 1, act: bool = False) -> Tensor:
        """Convolution with the batch norm that it may have, in evaluation mode."""
        conv = name if f'{name}.weight' in self.weights else f'{name}.conv'
        weight, bias = self.weights[f'{conv}.weight'], self.weights.get(f'{conv}.bias')
        groups = x.shape[1] // weight.shape[1]
        x = F.conv2d(x, weight, bias, stride, weight.shape[-1] // 2, 1, groups)
        norm = f'{name}.bn'
        if f'{norm}.weight' in self.weights:
            mean, var = (self.buffers[f'{norm}.running_{what}'] for what in ('mean', 'var'))
            scale, shift = self.weights[f'{norm}.weight'], self.weights[f'{norm}.bias']
            scale = scale / (var + 1e-5).sqrt()
            x = (x - mean[:, None, None]) * scale[:, None, None] + shift[:, None, None]
        return x.relu() if act else x

    def linear(self, x: Tensor, name: str) -> Tensor:
        weight = self.weights[f'{name}.weight'][..., None, None]
        return F.conv2d(x, weight, self.weights[f'{name}.bias'])

    def norm(self, x: Tensor, name: str) -> Tensor:
        x = x - x.mean(1, keepdim=True)
        x = x / (x.square().mean(1, keepdim=True) + 1e-5).sqrt()
        scale, shift = self.weights[f'{name}.weight'], self.weights[f'{name}.bias']
        return x * scale[:, None, None] + shift[:, None, None]

    def attention(self, x: Tensor, name: str) -> Tensor:
        """The layer itself, which has a test of its own."""
        out = self.model.get_submodule(name)(x.flatten(2).mT, tuple(x.shape[2:]))
        return out.mT.unflatten(-1, x.shape[2:])

    def block(self, x: Tensor, name: str) -> Tensor:
        x = x + self.conv(x, f'{name}.cpe1')
        y = self.norm(x, f'{name}.norm1')
        gate = F.silu(self.linear(y, f'{name}.act_proj'))
        y = F.silu(self.conv(self.linear(y, f'{name}.in_proj'), f'{name}.dwconv'))
        y = self.attention(y, f'{name}.attn')
        x = x + self.linear(y * gate, f'{name}.out_proj')
        x = x + self.conv(x, f'{name}.cpe2')
        y = F.gelu(self.linear(self.norm(x, f'{name}.norm2'), f'{name}.ffn.fc1'))
        return x + self.linear(y, f'{name}.ffn.fc2')

    def __call__(self, x: Tensor) -> list:
        x = F.pad(x, (0, -x.shape[3] % 4, 0, -x.shape[2] % 4))
        x = self.conv(x, 'stem.conv1', 2, act=True)
        x = x + self.conv(self.conv(x, 'stem.conv2.0', act=True), 'stem.conv2.1')
        x = self.conv(self.conv(x, 'stem.conv3.0', 2, act=True), 'stem.conv3.1')
        outs = []
        for i, depth in enumerate(self.model.arch['depths']):
            if i:
                x, name = F.pad(x, (0, x.shape[3] % 2, 0, x.shape[2] % 2)), f'downsamples.{i - 1}'
                x = self.conv(x, f'{name}.0', act=True)
                x = self.conv(self.conv(x, f'{name}.1', 2, act=True), f'{name}.2')
            for j in range(depth):
                x = self.block(x, f'stages.{i}.{j}')
            outs.append(self.norm(x, f'out_norms.{i}'))
        return outs


@pytest.fixture
def model() -> MLLA:
    model = MLLA(SMALL).double().eval()
    for value in model.state_dict().values():
        if value.is_floating_point():
            value.normal_(std=0.3).abs_() if value.dim() == 1 else value.normal_(std=0.3)
    return model


@pytest.mark.parametrize('size', [(64, 96), (45, 74), (3, 5)])
def test_equals_its_definition(model, size):
    """Also where stem and downsampling fill odd maps up, to a map of one token."""
    image = torch.randn(2, 3, *size, dtype=torch.float64)
    results = []
    for compute in (model, Definition(model)):
        leaf = image.clone().requires_grad_()
        outs = compute(leaf)
        loss = sum((out * torch.linspace(-1, 1, out.numel()).view_as(out)).mean() for out in outs)
        results.append([*outs, *torch.autograd.grad(loss, [leaf, *model.parameters()])])
    assert results[0][3].shape == (2, 32, -(-size[0] // 32), -(-size[1] // 32))
    assert all(out.is_contiguous() for out in results[0][:4])
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-11)


def test_recorded_block(golden):
    def ours(state):
        released = {f'layers.0.blocks.0.{name}': value for name, value in state.items()}
        return below(convert(released, 'mlla'), 'backbone.stages.0.0.')

    block = MLLABlock(16, 2, 2.0, 'MLLAAttention', 0.0)
    assert_equals_recording(block, *load_case(golden, 'mlla', 'block'), ours)


def test_recorded_backbone(golden):
    """Without its gradient of the image: torch 2.11 computes a wrong one for batch norms when the
    batch is one image and the gradient is transposed, as in the release. The definition above has
    the gradients."""
    tensors, facts = load_case(golden, 'mlla_small', 'released')
    sizes = facts['kwargs']
    dims = tuple(sizes['embed_dim'] * 2**i for i in range(4))
    arch = dict(
        embed_dims=dims,
        depths=sizes['depths'],
        num_heads=sizes['num_heads'],
        mlp_ratios=sizes['mlp_ratio'],
    )
    model = MLLA(arch).eval()
    model.load_state_dict(below(convert(below(tensors, 'state.'), 'mlla'), 'backbone.'))
    with torch.no_grad():
        assert_near(model(tensors['in.x']), [tensors[f'out.{i}'] for i in range(4)])


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_autocast_is_finite(dtype):
    """Features of some hundred and their products, which float16 could not sum."""
    model = MLLA(SMALL)
    with torch.no_grad():
        for stage in model.stages:
            stage[0].attn.in_proj.bias += 300
    image = torch.randn(2, 3, 64, 96)
    with torch.autocast('cpu', dtype):
        outs = model(image)
    sum(out.float().square().mean() for out in outs).backward()
    assert all(torch.isfinite(out).all() for out in outs)
    for name, parameter in model.named_parameters():
        assert torch.isfinite(parameter.grad).all(), name


@pytest.mark.parametrize(
    'arch, message',
    [
        ('large', "MLLA: arch must be one of 'tiny', 'small', 'base' or a dict, got 'large'"),
        (dict(SMALL, embed_dims=(9, 16, 24, 32)), r"arch\['embed_dims'\]\[0\] must be even.* 9"),
        (dict(SMALL, num_heads=(3, 2, 3, 4)), 'embed_dims=8 must be a positive multiple of num_h'),
        (dict(SMALL, embed_dims=(8, 16, 18, 32)), 'multiple of 4 channels .* got 18 channels in 3'),
    ],
)  # fmt: skip
def test_wrong_sizes(arch, message):
    with pytest.raises(ValueError, match=message):
        MLLA(arch)
