"""Stand-in for ``mmcv._ext``, the compiled operators that mmcv-lite lacks.

mmcv-lite has every Python file of mmcv, ``mmcv.ops`` included, and only this module is missing.
``mmlinattn_mmcv.py`` loads the file under that name where no compiled one is found. It needs torch
and torchvision alone and imports nothing of mmlinattn, so it may load while mmcv is being imported.

The functions have the names, arguments and effects of the compiled ones, on the CPU and on CUDA:
several return nothing and write into a tensor of the caller. float16 and bfloat16 are computed in
float32 and rounded once. An operator that is not here is a function that raises
``NotImplementedError`` with its name and how to get compiled mmcv.
"""

from typing import Any, Callable, Tuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

try:
    import torchvision
except (ImportError, RuntimeError) as error:  # absent, or built for another torch
    raise ImportError(
        'mmcv-lite has no compiled operators; mmlinattn stands in for them with those of '
        f'torchvision, which cannot be imported next to torch {torch.__version__} ({error}). '
        'Install the torchvision that belongs to it, or compiled mmcv.'
    ) from error

OPERATORS = (
    'nms', 'softnms', 'roi_align_forward', 'roi_align_backward', 'sigmoid_focal_loss_forward',
    'sigmoid_focal_loss_backward', 'ms_deform_attn_forward', 'ms_deform_attn_backward',
)  # fmt: skip
AVERAGE = 1  # pool_mode of RoIAlign; 0 is the maximum
NAIVE, GAUSSIAN = 0, 2  # of the methods of soft NMS; 1 is linear


def __getattr__(name: str) -> Callable:
    """Every other operator: mmcv.ops asks for all names when it is imported, and calls few."""
    if name.startswith('_'):
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')

    def missing(*args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(_how_to_get(name))

    missing.__name__ = name
    return missing


def _how_to_get(what: str) -> str:
    return (
        f'{what} needs compiled mmcv. This environment has mmcv-lite, for whose missing operators '
        f'mmlinattn stands in, but only for {", ".join(OPERATORS)}. To get compiled mmcv: '
        '"pip uninstall mmcv-lite", then "pip install onedl-mim && mim install onedl-mmcv" with '
        "OneDL's frameworks, or \"pip install openmim && mim install 'mmcv>=2.0.0,<2.2.0'\" with "
        'the original ones (docs/installation.md).'
    )


def get_compiler_version() -> str:
    """What ``mmcv.utils.collect_env`` prints: that nothing was compiled."""
    return f'none: stand-in of mmlinattn over torchvision {torchvision.__version__}'


def get_compiling_cuda_version() -> str:
    """What ``mmcv.utils.collect_env`` prints: the CUDA of torch, on which torchvision runs."""
    return torch.version.cuda or 'not available'


# Non-maximum suppression


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float, offset: int) -> Tensor:
    """Greedy non-maximum suppression.

    Args:
        boxes (Tensor): (N, 4), x1 y1 x2 y2.
        scores (Tensor): (N,).
        iou_threshold (float): A box goes when its IoU with a better one is larger.
        offset (int): 0, or 1 for sizes of x2 - x1 + 1. The latter runs on the CPU.

    Returns:
        Tensor: (K,), int64. Indices of the boxes that stay, best first.
    """
    # Ties: mmcv's order is that of this sort. Torchvision would sort in its own way, so it gets the
    # boxes in order, with ranks for scores.
    order = scores.sort(0, descending=True)[1]
    boxes = boxes[order].float()
    threshold = float(np.float32(iou_threshold))  # as mmcv: an IoU of just 0.6 is not above 0.6
    if offset == 0:
        ranks = torch.arange(len(boxes), 0, -1, dtype=boxes.dtype, device=boxes.device)
        return order[torchvision.ops.nms(boxes, ranks, threshold)]
    # Torchvision has no offset, and shifted boxes would round differently.
    corners = boxes.detach().cpu().numpy()
    areas = _areas(corners, offset)
    alive = np.ones(len(corners), dtype=bool)
    for i in range(len(corners)):
        if alive[i]:
            rest = slice(i + 1, None)
            alive[rest] &= ~(_overlaps(corners, areas, i, rest, offset) > threshold)
    return order[torch.from_numpy(alive).to(order.device)]


def softnms(
    boxes: Tensor, scores: Tensor, dets: Tensor, iou_threshold: float, sigma: float,
    min_score: float, method: int, offset: int,
) -> Tensor:  # fmt: skip
    """Soft non-maximum suppression, on the CPU as mmcv's: overlap lowers the score of a box.

    Args:
        boxes (Tensor): (N, 4), x1 y1 x2 y2.
        scores (Tensor): (N,).
        dets (Tensor): (N, 5), written: boxes and new scores of those that stay, best first.
        iou_threshold (float): From which IoU on the methods 0 and 1 act.
        sigma (float): Width of the Gaussian of method 2.
        min_score (float): A box goes when its score falls below.
        method (int): 0 naive (score 0), 1 linear (times 1 - IoU), 2 Gaussian.
        offset (int): 0, or 1 for sizes of x2 - x1 + 1.

    Returns:
        Tensor: (K,), int64. Indices of the boxes that stay.
    """
    corners = boxes.detach().float().numpy().copy()
    values = scores.detach().float().numpy().copy()
    areas = _areas(corners, offset)
    index = np.arange(len(corners))
    columns = (corners, values, areas, index)
    iou_threshold, min_score = np.float32(iou_threshold), np.float32(min_score)
    count, i = len(corners), 0
    while i < count:
        best = i + int(values[i:count].argmax())
        for column in columns:
            column[[i, best]] = column[[best, i]]
        rest = slice(i + 1, count)
        iou = _overlaps(corners, areas, i, rest, offset)
        if method == GAUSSIAN:
            values[rest] *= np.exp(-(iou * iou) / np.float32(sigma))
        else:
            keep = 0 if method == NAIVE else 1 - iou
            values[rest] *= np.where(iou >= iou_threshold, keep, 1).astype(np.float32)
        # A box that goes leaves its place to the last one: decides the order among equal scores.
        alive = values[rest] >= min_score
        stay = np.arange(alive.sum())
        stay[~alive[: len(stay)]] = np.flatnonzero(alive)[::-1][: (~alive[: len(stay)]).sum()]
        for column in columns:
            column[i + 1 : i + 1 + len(stay)] = column[rest][stay]
        count, i = i + 1 + len(stay), i + 1
    dets[:count, :4] = torch.from_numpy(corners[:count]).to(dets)
    dets[:count, 4] = torch.from_numpy(values[:count]).to(dets)
    return torch.from_numpy(index[:count])


def _areas(corners: np.ndarray, offset: int) -> np.ndarray:
    """Areas (N,) of boxes (N, 4)."""
    sizes = corners[:, 2:] - corners[:, :2] + np.float32(offset)
    return sizes[:, 0] * sizes[:, 1]


def _overlaps(
    corners: np.ndarray, areas: np.ndarray, i: int, rest: slice, offset: int
) -> np.ndarray:
    """IoU of box i with the boxes ``rest``, with mmcv's operations in mmcv's order.

    0 for two boxes without area, where mmcv's soft NMS makes NaN of the score.
    """
    low = np.maximum(corners[i, :2], corners[rest, :2])
    high = np.minimum(corners[i, 2:], corners[rest, 2:])
    sizes = (high - low + np.float32(offset)).clip(min=0)
    shared = sizes[:, 0] * sizes[:, 1]
    union = areas[i] + areas[rest] - shared
    return np.divide(shared, union, out=np.zeros_like(shared), where=union != 0)


# RoIAlign


def roi_align_forward(
    input: Tensor, rois: Tensor, output: Tensor, argmax_y: Tensor, argmax_x: Tensor,
    aligned_height: int, aligned_width: int, spatial_scale: float, sampling_ratio: int,
    pool_mode: int, aligned: bool,
) -> None:  # fmt: skip
    """RoIAlign with averages.

    Args:
        input (Tensor): (B, C, H, W).
        rois (Tensor): (K, 5), index in the batch and x1 y1 x2 y2, of input's type.
        output (Tensor): (K, C, aligned_height, aligned_width), written.
        argmax_y, argmax_x (Tensor): Of maxima only, ignored.
        aligned_height, aligned_width (int): Bins.
        spatial_scale (float): Of the map to the image of the boxes.
        sampling_ratio (int): Samples along a side of a bin; 0 takes one for each pixel.
        pool_mode (int): 1, averages.
        aligned (bool): Shifts by half a pixel.

    Raises:
        NotImplementedError: If pool_mode is 0, maxima.
    """
    _check_average(pool_mode)
    output.copy_(
        torch.ops.torchvision.roi_align(
            _widen(input), _widen(rois), spatial_scale, aligned_height, aligned_width,
            sampling_ratio, aligned,
        )
    )  # fmt: skip


def roi_align_backward(
    grad_output: Tensor, rois: Tensor, argmax_y: Tensor, argmax_x: Tensor, grad_input: Tensor,
    aligned_height: int, aligned_width: int, spatial_scale: float, sampling_ratio: int,
    pool_mode: int, aligned: bool,
) -> None:  # fmt: skip
    """Gradient of :func:`roi_align_forward` with respect to input, written to ``grad_input``.

    Args:
        grad_output (Tensor): (K, C, aligned_height, aligned_width).
        rois (Tensor): (K, 5).
        argmax_y, argmax_x (Tensor): Ignored.
        grad_input (Tensor): (B, C, H, W), written.

    The rest is as in the forward function.
    """
    _check_average(pool_mode)
    grad_output, rois = _widen(grad_output), _widen(rois)
    if torch.are_deterministic_algorithms_enabled():
        # The CUDA kernel adds in any order and refuses; that of the CPU has one order.
        grad_output, rois = grad_output.cpu(), rois.cpu()
    grad_input.copy_(
        torch.ops.torchvision._roi_align_backward(
            grad_output, rois, spatial_scale, aligned_height, aligned_width, *grad_input.shape,
            sampling_ratio, aligned,
        )
    )  # fmt: skip


def _check_average(pool_mode: int) -> None:
    if pool_mode != AVERAGE:
        raise NotImplementedError(_how_to_get("roi_align with pool_mode='max'"))


# Sigmoid focal loss


def sigmoid_focal_loss_forward(
    input: Tensor, target: Tensor, weight: Tensor, output: Tensor, gamma: float, alpha: float
) -> None:
    """Focal loss of each logit.

    Args:
        input (Tensor): (N, C), logits.
        target (Tensor): (N,), int64. Class of each row; C is background, a row without any.
        weight (Tensor): (C,), of each target class, or empty. Background has weight 1.
        output (Tensor): (N, C), written.
        gamma (float): Power by which sure predictions count less.
        alpha (float): Weight of the class, and 1 - alpha of the others.
    """
    _, z, balance = _focal_terms(input, target, weight, alpha)
    output.copy_(-balance * (-z).sigmoid() ** gamma * F.logsigmoid(z))


def sigmoid_focal_loss_backward(
    input: Tensor, target: Tensor, weight: Tensor, grad_input: Tensor, gamma: float, alpha: float
) -> None:
    """Derivative of :func:`sigmoid_focal_loss_forward`, (N, C), written to ``grad_input``."""
    sign, z, balance = _focal_terms(input, target, weight, alpha)
    p, q = z.sigmoid(), (-z).sigmoid()
    grad_input.copy_(sign * balance * q**gamma * (gamma * p * F.logsigmoid(z) - q))


def _focal_terms(
    input: Tensor, target: Tensor, weight: Tensor, alpha: float
) -> Tuple[Tensor, Tensor, Tensor]:
    """Sign, logit of the right answer, and weight of each logit, all (N, C)."""
    x = _widen(input)
    classes = x.shape[1]
    hit = (target[:, None] == torch.arange(classes, device=x.device)).to(x)  # 0 or 1
    sign, balance = 2 * hit - 1, alpha * hit + (1 - alpha) * (1 - hit)
    if weight.numel():
        is_class = (target >= 0) & (target < classes)
        of_row = torch.where(is_class, weight[target.clamp(0, classes - 1)].to(x), 1.0)
        balance = balance * of_row[:, None]
    return sign, sign * x, balance


# Multi-scale deformable attention


def ms_deform_attn_forward(
    value: Tensor, value_spatial_shapes: Tensor, value_level_start_index: Tensor,
    sampling_locations: Tensor, attention_weights: Tensor, im2col_step: int,
) -> Tensor:  # fmt: skip
    """Weighted sum of bilinear samples, of maps in several sizes.

    Args:
        value (Tensor): (B, S, heads, D), the maps' pixels behind one another.
        value_spatial_shapes (Tensor): (L, 2), int64. Height and width of each map.
        value_level_start_index (Tensor): (L,), int64. Its first pixel among S.
        sampling_locations (Tensor): (B, Q, heads, L, P, 2), x and y in [0, 1].
        attention_weights (Tensor): (B, Q, heads, L, P).
        im2col_step (int): Ignored: the batch is not split.

    Returns:
        Tensor: (B, Q, heads * D), of value's type.
    """
    levels = zip(value_spatial_shapes.tolist(), value_level_start_index.tolist())
    return _deform_attn(value, list(levels), sampling_locations, attention_weights)


def ms_deform_attn_backward(
    value: Tensor, value_spatial_shapes: Tensor, value_level_start_index: Tensor,
    sampling_locations: Tensor, attention_weights: Tensor, grad_output: Tensor,
    grad_value: Tensor, grad_sampling_loc: Tensor, grad_attn_weight: Tensor, im2col_step: int,
) -> None:  # fmt: skip
    """Gradients of :func:`ms_deform_attn_forward`.

    Args:
        grad_output (Tensor): (B, Q, heads * D).
        grad_value (Tensor): Of value's shape, written.
        grad_sampling_loc (Tensor): Of sampling_locations' shape, written.
        grad_attn_weight (Tensor): Of attention_weights' shape, written.

    The rest is as in the forward function, which runs again here.
    """
    levels = list(zip(value_spatial_shapes.tolist(), value_level_start_index.tolist()))
    inputs = [x.detach().requires_grad_() for x in (value, sampling_locations, attention_weights)]
    with torch.enable_grad():
        output = _deform_attn(inputs[0], levels, *inputs[1:])
    grads = torch.autograd.grad(output, inputs, grad_output)
    for written, grad in zip((grad_value, grad_sampling_loc, grad_attn_weight), grads):
        written.copy_(grad)


def _deform_attn(value: Tensor, levels: list, locations: Tensor, weights: Tensor) -> Tensor:
    batch, _, heads, dim = value.shape
    queries, points = locations.shape[1], locations.shape[4]
    wide, grids = _widen(value), 2 * _widen(locations) - 1
    output = wide.new_zeros(batch * heads, dim, queries)
    for level, ((height, width), start) in enumerate(levels):
        pixels = wide[:, start : start + height * width].permute(0, 2, 3, 1)
        maps = pixels.reshape(batch * heads, dim, height, width)
        grid = grids[:, :, :, level].transpose(1, 2).reshape(batch * heads, queries, points, 2)
        samples = F.grid_sample(maps, grid, align_corners=False)  # (B heads, D, Q, P)
        weight = _widen(weights[:, :, :, level]).transpose(1, 2)
        output = output + (samples * weight.reshape(batch * heads, 1, queries, points)).sum(3)
    return output.view(batch, heads * dim, queries).transpose(1, 2).to(value.dtype)


def _widen(x: Tensor) -> Tensor:
    """float32 for the half types, which torchvision's operators have only in part."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
