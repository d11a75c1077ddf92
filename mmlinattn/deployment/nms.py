"""Non-maximum suppression of a batch as one operator of fixed shape.

Example:
    >>> boxes = torch.tensor([[[0.0, 0, 8, 8], [0, 0, 8, 7], [9, 9, 12, 12]]])
    >>> suppress(boxes, torch.tensor([[0.8, 0.9, 0.1]]), 0.5, 10)
    tensor([[0., 1., 1.]])
"""

from typing import Any, Callable, Dict

import torch
from torch import Tensor


@torch.library.custom_op('mmlinattn::suppress', mutates_args=())
def suppress(boxes: Tensor, scores: Tensor, iou_threshold: float, limit: int) -> Tensor:
    """Apply greedy non-maximum suppression to boxes (B, N, 4) with scores (B, N) of each image.

    The result always has the shape of the scores, so that torch.export can capture the model: 1 for
    the ``limit`` best boxes that are kept, and 0 elsewhere. Boxes without a positive score are
    ignored. In ONNX it becomes a ``NonMaxSuppression``.
    """
    from torchvision.ops import nms

    stays = torch.zeros_like(scores)
    threshold = torch.tensor(iou_threshold, dtype=torch.float32).item()  # as in mmcv and ONNX
    for row, corners, values in zip(stays, boxes, scores):
        index = (values > 0).nonzero().squeeze(1)
        row[index[nms(corners[index], values[index], threshold)[:limit]]] = 1
    return stays


@suppress.register_fake
def _(boxes: Tensor, scores: Tensor, iou_threshold: float, limit: int) -> Tensor:
    return torch.empty_like(scores)


def onnx_translations() -> Dict[Callable, Callable]:
    """Return the translation of :func:`suppress` to ONNX, for ``torch.onnx.export``."""
    from onnxscript import INT64, opset18

    op: Any = opset18  # its constants have the types of all numbers, which no operator takes

    def to_onnx(boxes, scores, iou_threshold: float, limit: int):
        threshold = op.Constant(value_floats=[iou_threshold])
        zero = op.Constant(value_floats=[0.0])
        number = op.Constant(value_ints=[limit])
        # [found, 3]: image, class (always 0), box
        chosen = op.NonMaxSuppression(
            boxes, op.Unsqueeze(scores, op.Constant(value_ints=[1])), number, threshold, zero
        )
        places = op.Gather(chosen, op.Constant(value_ints=[0, 2]), axis=1)
        found = op.Shape(chosen, start=0, end=1)
        ones = op.Expand(op.Constant(value_float=1.0), op.Cast(found, to=INT64.dtype))
        stays = op.Expand(op.Constant(value_float=0.0), op.Shape(scores))
        return op.ScatterND(stays, places, ones)

    return {torch.ops.mmlinattn.suppress.default: to_onnx}
