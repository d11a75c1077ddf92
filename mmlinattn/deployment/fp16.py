"""Half precision that stays finite: what is kept in float32, and what is measured."""

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
    """Put weights and maps of a model in float16, in place.

    In float32 stay: the normalisation of the image, what the attentions sum, divide by or take a
    softmax of (``accumulation_dtype``), boxes, scores and non-maximum suppression, and batch norms
    that do not follow a convolution, of which they would become part: their variances may be large.
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
    """A layer that computes in float32 between half types."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.float()).to(x.dtype)


class Activation(NamedTuple):
    """The largest number, where it was computed, and whether all were finite."""

    value: float
    place: str

    def __str__(self) -> str:
        return f'{self.value:.4g} of {LIMIT:.0f} that float16 holds, in {self.place}'

    @property
    def finite(self) -> bool:
        return self.value <= LIMIT


class _Watch(torch.fx.Interpreter):
    """Runs a program and keeps the largest number among its float16 results."""

    largest = Activation(0.0, '')

    def run_node(self, node: torch.fx.Node) -> Any:
        result = super().run_node(node)
        # Weights are placeholders: what they hold is no activation.
        computed = node.op == 'call_function' and isinstance(result, Tensor)
        if computed and result.dtype == torch.float16 and result.numel():
            value = float(result.float().abs().nan_to_num(nan=float('inf')).max())
            if value > self.largest.value:
                self.largest = Activation(value, place_of(node))
        return result


def place_of(node: torch.fx.Node) -> str:
    """The module that a node of a captured program comes from, and the node."""
    stack = list((node.meta.get('nn_module_stack') or {}).values())
    module = stack[-1][0].removeprefix('model.') if stack else ''
    return f'{module} ({node.name})' if module else node.name


def largest_activation(program: ExportedProgram, image: Tensor) -> Activation:
    """The largest number among the float16 results of a program.

    Args:
        program: see :func:`.capture.capture`.
        image: (B, 3, H, W) float32, RGB, 0..255, that is typical of the data.
    """
    watch = _Watch(program.module())
    with torch.no_grad():
        watch.run(image)
    return watch.largest
