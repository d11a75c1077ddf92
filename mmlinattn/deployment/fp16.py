"""Half precision for export."""

import copy

import torch
from mmcv.cnn.utils import fuse_conv_bn
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from .deployable import Deployable


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
