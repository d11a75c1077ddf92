"""Half precision that stays finite: what is kept in float32, and what is measured."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.nn.modules.batchnorm import _BatchNorm

from .models import Deployable

LIMIT = torch.finfo(torch.float16).max  # 65504


def to_half(model: Deployable) -> None:
    """Puts weights and maps of a model in float16, in place.

    In float32 stay: the normalisation of the image, running statistics of batch norms, what the
    attentions sum, divide by or take a softmax of (``accumulation_dtype``), boxes, scores and
    non-maximum suppression.
    """
    model.model.half()
    for module in model.model.modules():
        if isinstance(module, _BatchNorm):
            module.float()  # a variance may be beyond 65,504
    model.dtype = torch.float16


class Activation(NamedTuple):
    """The largest number, where it was computed, and whether all were finite."""

    value: float
    place: str

    @property
    def finite(self) -> bool:
        return self.value <= LIMIT


class _Watch(torch.fx.Interpreter):
    """Runs a program and keeps the largest number among its float16 results."""

    largest = Activation(0.0, '')

    def run_node(self, node: torch.fx.Node) -> Any:
        result = super().run_node(node)
        if isinstance(result, Tensor) and result.dtype == torch.float16 and result.numel():
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
    """The largest number among the float16 results of a program, weights included.

    Args:
        program: see :func:`.capture.capture`.
        image: (B, 3, H, W) float32, RGB, 0..255, that is typical of the data.
    """
    watch = _Watch(program.module())
    with torch.no_grad():
        watch.run(image)
    return watch.largest
