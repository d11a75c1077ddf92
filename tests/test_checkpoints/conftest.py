"""Files as released, made from names written out here by hand: none of the key maps is used."""

from types import SimpleNamespace

import pytest
import torch

DIMS, DEPTHS, HIDDEN, HEADS = (8, 8, 16, 16), (1, 1, 2, 1), (16, 16, 32, 32), (1, 1, 2, 2)
BN = ('weight', 'bias', 'running_mean', 'running_var', 'num_batches_tracked')


def conv(name, out, inner, kernel=1, bias=True):
    shapes = {f'{name}.weight': (out, inner, kernel, kernel)}
    return {**shapes, f'{name}.bias': (out,)} if bias else shapes


def linear(name, out, inner):
    return {f'{name}.weight': (out, inner), f'{name}.bias': (out,)}


def norm(name, dim):
    return {f'{name}.weight': (dim,), f'{name}.bias': (dim,)}


def batch_norm(name, dim):
    return {f'{name}.{part}': () if part == 'num_batches_tracked' else (dim,) for part in BN}


def conv_bn(name, out, inner, kernel=1):
    """A ConvModule with a batch norm."""
    return {**conv(f'{name}.conv', out, inner, kernel, bias=False), **batch_norm(f'{name}.bn', out)}


def backbone_shapes(prefix='', dense=True):
    shapes, half = {}, DIMS[0] // 2
    for i, (out, inner) in zip((0, 3, 6, 9), ((half, 3), (half, half), (half, half), (8, half))):
        shapes.update(conv(f'patch_embed.proj.{i}', out, inner, 3))
        shapes.update(batch_norm(f'patch_embed.proj.{i + 1}', out))
    for i, (dim, hidden) in enumerate(zip(DIMS, HIDDEN)):
        shapes[f'layers.{i}.RoPE.angle'] = (dim // HEADS[i] // 2,)
        for j in range(DEPTHS[i]):
            block = f'layers.{i}.blocks.{j}'
            shapes.update(conv(f'{block}.pos', dim, 1, 3))
            shapes.update(norm(f'{block}.norm1.norm', dim))
            shapes.update(norm(f'{block}.norm2.norm', dim))
            shapes.update(conv(f'{block}.attn.qkvo', 4 * dim, dim))
            shapes.update(conv(f'{block}.attn.lepe', dim, 1, 5))
            shapes.update(conv(f'{block}.attn.proj', dim, dim))
            shapes.update(conv(f'{block}.ffn.fc1', hidden, dim))
            shapes.update(conv(f'{block}.ffn.dwconv', hidden, 1, 3))
            shapes.update(conv(f'{block}.ffn.fc2', dim, hidden))
            shapes[f'{block}.gamma_1'] = shapes[f'{block}.gamma_2'] = (1, dim, 1, 1)
        if i < 3:
            shapes.update(conv(f'layers.{i}.downsample.reduction', DIMS[i + 1], dim, 3))
            shapes.update(batch_norm(f'layers.{i}.downsample.norm', DIMS[i + 1]))
        if dense:
            shapes.update(norm(f'extra_norms.{i}.norm', dim))
    return {prefix + name: shape for name, shape in shapes.items()}


def classifier_shapes():
    shapes = {**backbone_shapes(dense=False), **conv('proj', 24, DIMS[3])}
    return {**shapes, **batch_norm('norm', 24), **conv('head', 10, 24)}


def random_tensors(shapes):
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.tensor(7)
        if name.endswith('num_batches_tracked')
        else torch.rand(shape, generator=generator)
        for name, shape in shapes.items()
    }


@pytest.fixture
def names():
    """Makers of name -> shape for the parts of whole models."""
    return SimpleNamespace(conv=conv, linear=linear, conv_bn=conv_bn, backbone=backbone_shapes)


@pytest.fixture
def tensors():
    return random_tensors


@pytest.fixture
def dense():
    """A released dense backbone."""
    return random_tensors(backbone_shapes())


@pytest.fixture
def classifier():
    """A released classifier."""
    return random_tensors(classifier_shapes())


@pytest.fixture
def backbone_cfg():
    """The config that these weights fit."""
    return dict(
        type='RAVLT',
        arch=dict(embed_dims=DIMS, depths=DEPTHS, num_heads=HEADS, mlp_ratios=2.0),
        norm_cfg=dict(type='BN'),
    )
