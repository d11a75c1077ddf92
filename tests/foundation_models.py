"""Models of timm and transformers with weights by a formula, and what they compute."""

import re
import zlib
from typing import Tuple

import torch

from mmlinattn.checkpoints.converters import convert
from mmlinattn.models.backbones import ViT
from mmlinattn.models.backbones.vit_architectures import (
    CLIP,
    DEIT3,
    DINOV2,
    DINOV3,
    REGISTERS,
    SIGLIP,
)
from tests.recordings import below

SIDE, PATCH = 12, 4
SIZES = ((SIDE, SIDE), (8, 12), (12, 20))  # that of the positions, a smaller and a larger one
SMALL = dict(patch_size=PATCH, img_size=SIDE, depth=2)
GATED = dict(ffn='swiglu', mlp_ratio=2.5)
BICUBIC, ANTIALIAS = dict(pos_resize='bicubic'), dict(pos_resize='antialias')


def randomise(module):
    """Fill all parameters with random numbers, since many initial values are 0."""
    for value in module.parameters():
        torch.nn.init.normal_(value, std=0.2)
    return module


def renamed(state_dict: dict, *pairs: Tuple[str, str]) -> dict:
    """Replace regular expressions in the names of weights."""
    names = {}
    for name, value in state_dict.items():
        for ours, theirs in pairs:
            name = re.sub(ours, theirs, name)
        names[name] = value
    return names


# Library and case: source of the converter, architecture here.
CASES = {
    'timm.dinov2': ('dinov2', (DINOV2, ANTIALIAS)),
    'timm.dinov2-gated-reg': ('dinov2', (DINOV2, REGISTERS, GATED)),
    'timm.dinov3': ('dinov3', (DINOV3,)),
    'timm.dinov3-no-bias': ('dinov3', (DINOV3,)),
    'timm.dinov3-gated': ('dinov3', (DINOV3, GATED)),
    'timm.deit3': ('deit3', (DEIT3,)),
    'timm.clip': ('clip', (CLIP,)),
    'timm.siglip': ('siglip', (SIGLIP,)),
    'transformers.dinov2': ('dinov2', (DINOV2, BICUBIC)),
    'transformers.dinov2-gated-reg': (
        'dinov2', (DINOV2, REGISTERS, dict(ffn='swiglu', mlp_ratio=344 / 128))),
    'transformers.dinov3': ('dinov3', (DINOV3,)),
    'transformers.dinov3-gated': ('dinov3', (DINOV3, GATED)),
    'transformers.clip': ('clip', (CLIP, BICUBIC)),
    'transformers.siglip': ('siglip', (SIGLIP, BICUBIC)),
}  # fmt: skip


def numbers(name, shape):
    """Return numbers of deviation 0.2, around 1 for weights of norms and scales, by a formula."""
    count = torch.Size(shape).numel()
    seed = zlib.crc32(name.encode()) % 10007
    waves = torch.sin(12.9898 * torch.arange(1, count + 1, dtype=torch.float64) + seed)
    noise = 2 * (43758.5453 * waves).frac().abs() - 1
    around = float(len(shape) == 1 and name.endswith(('weight', 'gamma', 'lambda1')))
    return (around + 0.35 * noise).reshape(shape).float()


def weights(shapes):
    return {name: numbers(name, shape) for name, shape in shapes.items()}


def our_model(case, state_dict, **changes):
    arch = dict(embed_dims=128, num_heads=2)
    for options in (*CASES[case][1], SMALL, changes):
        arch.update(options)
    model = ViT(arch).eval()
    model.load_state_dict(below(convert(state_dict, CASES[case][0]), 'backbone.'))
    return model


def image(size):
    return numbers('image', (1, 3, *size))


def outputs(features, size):
    """Return the features (N, C) of an image, and the gradient of their mean square."""
    x = image(size).requires_grad_()
    out = features(x)
    (grad,) = torch.autograd.grad(out.square().mean(), x)
    return out.detach()[0], grad[0]
