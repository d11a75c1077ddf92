"""Capture of a model by ``torch.export``, from which every format is written."""

import inspect
import math
import warnings
from contextlib import ExitStack
from typing import Any, Dict, List, Sequence, Tuple
from unittest.mock import patch

import torch
import torch.nn.functional as F
from mmengine.model import BaseModel
from mmengine.utils import to_2tuple
from torch import nn
from torch.export import Dim, ExportedProgram, export

from ..models.layers import BaseAttention
from ..models.layers.attend_calls import watch_attend
from .deployable import Deployable, NotDeployable
from .export_rewrites import adaptive_mean
from .file_metadata import FileMetadata
from .formats import FormatError

# Option of torch.export since torch 2.9, required for dynamic sizes.
DEFERRED = 'prefer_deferred_runtime_asserts_over_guards'
# Upper bounds of the side of an image and of the batch size.
LARGEST, MAX_BATCH = 8192, 256


def captured_size(shape: Tuple[int, int], coarsest: int, dynamic: bool) -> Tuple[int, int]:
    """Return the height and width to capture at for an export of ``shape``.

    Dynamic sizes need different sides, and at least two cells per side on every map, also that of
    the stride ``coarsest``: torch.export treats a side of 1 as a constant.
    """
    if not dynamic:
        return shape
    height, width = (max(side, 2 * coarsest) for side in shape)
    return height, width + coarsest * (height == width)


def check_torch() -> None:
    """Raise FormatError if this torch is too old to capture a model."""
    if DEFERRED not in inspect.signature(export).parameters:
        raise FormatError(
            f'export needs torch 2.9 or newer, this is {torch.__version__}; '
            'the environment that `make setup` makes has a newer one'
        )


def least_side(name: str, stride: int, coarsest: int, dynamic: bool) -> int:
    """Return the smallest side of an image that files of a format take."""
    if not dynamic:
        return stride
    # A program of torch.export asserts that no map has a side of 1.
    return stride + (coarsest if name == 'pt2' else stride)


def check_shape(
    shape: Sequence[int], stride: int, dynamic: bool, coarsest: int, formats: Sequence[str]
) -> None:
    """Raise ValueError unless the sides are multiples of the stride within the formats' limits."""
    height, width = shape
    for name in formats:
        least = least_side(name, stride, coarsest, dynamic)
        if min(shape) < least:
            sizes = ' and dynamic sizes: add --static, or give a larger shape' * dynamic
            raise ValueError(
                f'--shape {height} {width} is below {least}x{least}, the smallest of this model '
                f'(stride {stride}) with --format {name}{sizes}'
            )
    most = LARGEST - 2 * coarsest  # a taller and a wider image are compared, too
    if dynamic and max(shape) > most:
        raise ValueError(
            f'--shape {height} {width}: a side is above {most}, the largest of an export with '
            'dynamic sizes: add --static, or give a smaller shape'
        )
    for side in shape:
        if side % stride:
            low = side // stride * stride
            raise ValueError(
                f'--shape {height} {width}: {side} is not a multiple of the stride {stride}; '
                f'{low} and {low + stride} are'
            )


def strides_of(model: BaseModel) -> Tuple[int, int]:
    """Return the stride of the backbone, and that of the coarsest map in the model.

    The first is that of convolutions and pooling outside of attentions, and images are multiples of
    it; a backbone without them raises NotDeployable. Attentions, layers that merge patches and a
    neck may have coarser maps: RetinaNet's have a stride of 128 pixels.
    """
    kinds = nn.Conv2d, nn.MaxPool2d, nn.AvgPool2d
    layers = [layer for layer in model.backbone.modules()
              if isinstance(layer, kinds) and layer.stride not in (1, (1, 1))]  # fmt: skip
    attentions = [layer for layer in model.backbone.modules() if isinstance(layer, BaseAttention)]
    inside = {layer for attn in attentions for layer in attn.modules()}
    # A multiple of every stride, such as patches of 14 pixels: rounded sides would tell another.
    factor = math.lcm(*(side for layer in layers for side in to_2tuple(layer.stride)))
    odd = factor // (factor & -factor)
    probe = 256 if odd == 1 else 64 * odd
    sides: List[int] = []
    coarse: List[int] = []
    with torch.no_grad(), ExitStack() as hooks:
        for layer in layers:
            found = coarse if layer in inside else sides
            hook = layer.register_forward_hook(
                lambda _, args, out, found=found: found.append(out.shape[-1])
            )
            hooks.enter_context(hook)
        for attn in attentions:
            watch = watch_attend(attn, lambda call: coarse.append(call.tokens.hw_shape[1]))
            hooks.enter_context(watch)
        feats = model.extract_feat(torch.zeros(1, 3, probe, probe))
    if not sides:
        raise NotDeployable(f'the stride of {type(model.backbone).__name__} cannot be found')
    # A classifier's neck returns vectors, not maps.
    coarse += [x.shape[-1] for x in feats if isinstance(x, torch.Tensor) and x.dim() == 4]
    return probe // min(sides), probe // min(sides + coarse)


def capture(model: Deployable, metadata: FileMetadata, coarsest: int) -> ExportedProgram:
    """Export a model to a program with ``torch.export``; its outputs are a dict.

    Args:
        model: model from :func:`.deployable.deployable`.
        metadata: description with the input sizes that the program must accept.
        coarsest: stride of the coarsest map, see :func:`strides_of`.

    Raises:
        FormatError: see :func:`check_torch`.
        ValueError: an attention needs a fixed size, see docs/export.md. Errors of torch.export are
            raised unchanged.
    """
    check_torch()
    batch = metadata.batch or 2  # torch.export would treat 1 as a constant
    size = captured_size(metadata.shape, coarsest, metadata.dynamic)
    image = torch.rand(batch, 3, *size) * 255
    dynamic: Dict[int, Any] = {}
    if metadata.batch is None:
        dynamic[0] = Dim('batch', min=1, max=MAX_BATCH)
    if metadata.dynamic:
        for dim, name in ((2, 'rows'), (3, 'columns')):
            dynamic[dim] = metadata.stride * Dim(name, min=2, max=LARGEST // metadata.stride)
    args, shapes = (image,), dict(image=dynamic)
    if metadata.task == 'detection':
        args += (torch.tensor([size] * batch),)
        shapes['size'] = {dim: side for dim, side in dynamic.items() if dim == 0}
    pooling = patch.object(F, 'adaptive_avg_pool2d', adaptive_mean)
    with torch.no_grad(), warnings.catch_warnings(), pooling:
        warnings.simplefilter('ignore')
        deferred: Dict[str, Any] = {DEFERRED: True}
        return export(model, args, dynamic_shapes=shapes, strict=False, **deferred)
