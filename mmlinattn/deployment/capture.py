"""Capture of a model by ``torch.export``, from which every format is written."""

import inspect
import warnings
from typing import Any, Dict, NamedTuple, Optional, Sequence, Tuple

import torch
from mmengine.model import BaseModel
from torch import nn
from torch.export import Dim, ExportedProgram, export

from .deployable import Deployable, NotDeployable
from .formats import FormatError

# Option of torch.export since torch 2.9, required for dynamic sizes.
DEFERRED = 'prefer_deferred_runtime_asserts_over_guards'
# Upper bounds of the side of an image and of the batch size.
LARGEST, MAX_BATCH = 8192, 256


class Sizes(NamedTuple):
    """Input sizes of an exported model.

    Attributes:
        shape: (H, W) of the export.
        stride: height and width must be multiples of it.
        dynamic: True for any such size, False for ``shape`` only.
        batch: batch size; None for any number.
        coarsest: stride of the coarsest feature map, including those of the neck.
    """

    shape: Tuple[int, int]
    stride: int
    dynamic: bool = True
    batch: Optional[int] = 1
    coarsest: Optional[int] = None

    @property
    def least(self) -> int:
        """Smallest height or width: two cells of the backbone's coarsest map."""
        return 2 * self.stride

    @property
    def captured(self) -> Tuple[int, int]:
        """Height and width to capture at.

        Dynamic sizes need different sides, and at least two cells per side on every map:
        torch.export treats a side of 1 as a constant.
        """
        if not self.dynamic:
            return self.shape
        step = max(self.coarsest or self.stride, self.stride)
        height, width = (max(side, 2 * step) for side in self.shape)
        return height, width + step * (height == width)


def check_torch() -> None:
    """Raise FormatError if this torch is too old to capture a model."""
    if DEFERRED not in inspect.signature(export).parameters:
        raise FormatError(
            f'export needs torch 2.9 or newer, this is {torch.__version__}; '
            'the environment that `make setup` makes has a newer one'
        )


def check_shape(shape: Sequence[int], stride: int, dynamic: bool) -> None:
    """Raise ValueError unless height and width are multiples of the stride and large enough."""
    least = 2 * stride if dynamic else stride
    height, width = shape
    if min(shape) < least:
        raise ValueError(
            f'--shape {height} {width} is below {least}x{least}, the smallest that this model '
            f'(stride {stride}) exports with' + (' dynamic sizes' if dynamic else '')
        )
    for side in shape:
        if side % stride:
            low = side // stride * stride
            raise ValueError(
                f'--shape {height} {width}: {side} is not a multiple of the stride {stride}; '
                f'{low} and {low + stride} are'
            )


def strides_of(model: BaseModel) -> Tuple[int, int]:
    """Return the strides of the coarsest map of the backbone, and of backbone and neck together.

    A neck may add coarser maps: RetinaNet's have a stride of 128 pixels.

    Raises:
        NotDeployable: the backbone has no strided convolution or pooling.
    """
    backbone, probe, sides = model.backbone, 256, []
    hooks = [
        layer.register_forward_hook(lambda layer, args, out: sides.append(out.shape[-1]))
        for layer in backbone.modules()
        if isinstance(layer, (nn.Conv2d, nn.MaxPool2d)) and layer.stride not in (1, (1, 1))
    ]
    try:
        with torch.no_grad():
            feats = model.extract_feat(torch.zeros(1, 3, probe, probe))
    finally:
        for hook in hooks:
            hook.remove()
    if not sides:
        raise NotDeployable(f'the stride of {type(backbone).__name__} cannot be found')
    # A classifier's neck returns vectors, not maps.
    maps = [feat.shape[-1] for feat in feats if isinstance(feat, torch.Tensor) and feat.dim() == 4]
    return probe // min(sides), probe // min(sides + maps)


def capture(model: Deployable, sizes: Sizes) -> ExportedProgram:
    """Export a model to a program with ``torch.export``.

    Args:
        model: model from :func:`.deployable.deployable`.
        sizes: input sizes that the program must accept.

    Returns:
        the program; its argument is ``image``, its outputs are a dict.

    Raises:
        FormatError: see :func:`check_torch`.
        ValueError: an attention needs a fixed size, see docs/export.md. Errors of torch.export are
            raised unchanged.
    """
    check_torch()
    batch = sizes.batch or 2  # torch.export would treat 1 as a constant
    image = torch.rand(batch, 3, *sizes.captured) * 255
    dynamic = {}
    if sizes.batch is None:
        dynamic[0] = Dim('batch', min=1, max=MAX_BATCH)
    if sizes.dynamic:
        for dim, name in ((2, 'rows'), (3, 'columns')):
            dynamic[dim] = sizes.stride * Dim(name, min=2, max=LARGEST // sizes.stride)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter('ignore')
        deferred: Dict[str, Any] = {DEFERRED: True}
        return export(model, (image,), dynamic_shapes={'image': dynamic}, strict=False, **deferred)
