"""Half precision for export: conversion to float16 and a check of the largest activation."""

import copy
from typing import Any, NamedTuple

import torch
from mmcv.cnn.utils import fuse_conv_bn
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.nn.modules.batchnorm import _BatchNorm

from .deployable import Deployable

LIMIT = torch.finfo(torch.float16).max  # 65504


def to_half(model: Deployable) -> None:
    """Convert weights and feature maps of a model to float16, in place.

    Several parts stay in float32: the normalisation of the image; sums, divisors and softmax of the
    attentions (``accumulation_dtype``); boxes, scores and non-maximum suppression. So do batch
    norms that cannot be fused into a preceding convolution, because their variances may be large.
    """
    fuse_conv_bn(model.model)
    norms = {
        name: copy.deepcopy(module)
        for name, module in model.model.named_modules()
        if isinstance(module, _BatchNorm)
    }
    model.model.half()
    for name, norm in norms.items():
        parent, _, own = name.rpartition('.')
        setattr(model.model.get_submodule(parent), own, InFloat32(norm))
    model.dtype = torch.float16


class InFloat32(nn.Module):
    """Wrapper that computes a layer in float32 and returns the dtype of the input."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.float()).to(x.dtype)


class Activation(NamedTuple):
    """Largest activation, and the place where it was computed."""

    value: float
    place: str

    def __str__(self) -> str:
        return f'{self.value:.4g} of {LIMIT:.0f} that float16 holds, in {self.place}'

    @property
    def finite(self) -> bool:
        return self.value <= LIMIT


class _Watch(torch.fx.Interpreter):
    """Interpreter of a program that records its largest float16 activation."""

    largest = Activation(0.0, '')

    def run_node(self, node: torch.fx.Node) -> Any:
        result = super().run_node(node)
        # Weights are placeholders, not activations.
        computed = node.op == 'call_function' and isinstance(result, Tensor)
        if computed and result.dtype == torch.float16 and result.numel():
            value = float(result.float().abs().nan_to_num(nan=float('inf')).max())
            if value > self.largest.value:
                self.largest = Activation(value, place_of(node))
        return result


def place_of(node: torch.fx.Node) -> str:
    """Return the module and the name of a node of a captured program."""
    stack = list((node.meta.get('nn_module_stack') or {}).values())
    module = stack[-1][0].removeprefix('model.') if stack else ''
    return f'{module} ({node.name})' if module else node.name


def largest_activation(program: ExportedProgram, image: Tensor) -> Activation:
    """Return the largest float16 activation of a program.

    Args:
        program: see :func:`.capture.capture`.
        image: (B, 3, H, W) float32, RGB, 0..255, typical of the data.
    """
    watch = _Watch(program.module())
    with torch.no_grad():
        watch.run(image)
    return watch.largest
