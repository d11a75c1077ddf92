"""Stand-in for ``mmcv._ext``, the compiled operators that mmcv-lite lacks.

mmcv-lite has every Python file of mmcv, ``mmcv.ops`` included, and lacks only this module.
``setup.py`` installs a copy of this file beside them, as ``mmcv/_ext.py``. Python prefers a
compiled ``mmcv/_ext.*.so`` to it. It imports only torch and torchvision, nothing of mmlinattn, so
``mmcv.ops`` works whether mmlinattn is imported or not.

The functions have the names, arguments and effects of the compiled ones, on the CPU and on CUDA.
Several return nothing and write into a tensor of the caller. float16 and bfloat16 are computed in
float32 and rounded once. Every other operator is a function that raises ``NotImplementedError``
with its name and how to install compiled mmcv.
"""

from typing import Any, Callable, Tuple

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
    'nms', 'roi_align_forward', 'roi_align_backward', 'sigmoid_focal_loss_forward',
    'sigmoid_focal_loss_backward', 'ms_deform_attn_forward', 'ms_deform_attn_backward',
)  # fmt: skip


def __getattr__(name: str) -> Callable:
    """Return a function that raises NotImplementedError, for every other operator.

    ``mmcv.ops`` looks up all names at import and calls few of them.
    """
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
        "OneDL's frameworks, or \"pip install openmim && mim install 'mmcv>=2.1.0,<2.2.0'\" with "
        'the original ones (docs/installation.md).'
    )


def get_compiler_version() -> str:
    """Return the compiler for ``mmcv.utils.collect_env``; nothing was compiled."""
    return f'none: stand-in of mmlinattn over torchvision {torchvision.__version__}'


def get_compiling_cuda_version() -> str:
    """Return torch's CUDA version, which torchvision uses, for ``mmcv.utils.collect_env``."""
    return torch.version.cuda or 'not available'


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float, offset: int) -> Tensor:
    """Return the indices (K,) int64, best first, that greedy suppression of boxes (N, 4) leaves.

    A box is removed if its IoU with a better one is above the threshold.
    """
    if offset:
        raise NotImplementedError(_how_to_get(f'nms with {offset=}'))
    # mmcv breaks ties in the order of this sort, torchvision in another. Sorted boxes with ranks
    # instead of scores leave no ties.
    order = scores.sort(0, descending=True)[1]
    boxes = boxes[order].float()
    # As in mmcv, an IoU of 0.6 is not above 0.6.
    threshold = torch.tensor(iou_threshold, dtype=torch.float32).item()
    ranks = torch.arange(len(boxes), 0, -1, dtype=boxes.dtype, device=boxes.device)
    return order[torchvision.ops.nms(boxes, ranks, threshold)]


def roi_align_forward(
    input: Tensor, rois: Tensor, output: Tensor, argmax_y: Tensor, argmax_x: Tensor,
    aligned_height: int, aligned_width: int, spatial_scale: float, sampling_ratio: int,
    pool_mode: int, aligned: bool,
) -> None:  # fmt: skip
    """Write RoIAlign of maps (B, C, H, W) for rois (K, 5), index and x1 y1 x2 y2, to ``output``."""
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
    """Write the gradient of :func:`roi_align_forward` for its input to ``grad_input``."""
    _check_average(pool_mode)
    grad_output, rois = _widen(grad_output), _widen(rois)
    if torch.are_deterministic_algorithms_enabled():
        # The CUDA kernel adds in undefined order and raises here; the CPU kernel does not.
        grad_output, rois = grad_output.cpu(), rois.cpu()
    grad_input.copy_(
        torch.ops.torchvision._roi_align_backward(
            grad_output, rois, spatial_scale, aligned_height, aligned_width, *grad_input.shape,
            sampling_ratio, aligned,
        )
    )  # fmt: skip


def _check_average(pool_mode: int) -> None:
    if pool_mode != 1:  # 0 is max pooling
        raise NotImplementedError(_how_to_get("roi_align with pool_mode='max'"))


def sigmoid_focal_loss_forward(
    input: Tensor, target: Tensor, weight: Tensor, output: Tensor, gamma: float, alpha: float
) -> None:
    """Write the focal loss of each logit (N, C) to ``output``.

    ``target`` (N,) has the class of each row; C is background, a row without a class. ``weight``
    (C,) has the weight of each target class, or is empty; background has weight 1.
    """
    _, z, balance = _focal_terms(input, target, weight, alpha)
    output.copy_(-balance * (-z).sigmoid() ** gamma * F.logsigmoid(z))


def sigmoid_focal_loss_backward(
    input: Tensor, target: Tensor, weight: Tensor, grad_input: Tensor, gamma: float, alpha: float
) -> None:
    """Write the derivative of :func:`sigmoid_focal_loss_forward`, (N, C), to ``grad_input``."""
    sign, z, balance = _focal_terms(input, target, weight, alpha)
    p, q = z.sigmoid(), (-z).sigmoid()
    grad_input.copy_(sign * balance * q**gamma * (gamma * p * F.logsigmoid(z) - q))


def _focal_terms(
    input: Tensor, target: Tensor, weight: Tensor, alpha: float
) -> Tuple[Tensor, Tensor, Tensor]:
    """Return sign (target: 1, else -1), signed logit and weight of each logit, all (N, C)."""
    x = _widen(input)
    classes = x.shape[1]
    hit = (target[:, None] == torch.arange(classes, device=x.device)).to(x)  # 0 or 1
    sign, balance = 2 * hit - 1, alpha * hit + (1 - alpha) * (1 - hit)
    if weight.numel():
        is_class = (target >= 0) & (target < classes)
        of_row = torch.where(is_class, weight[target.clamp(0, classes - 1)].to(x), 1.0)
        balance = balance * of_row[:, None]
    return sign, sign * x, balance


def ms_deform_attn_forward(
    value: Tensor, value_spatial_shapes: Tensor, value_level_start_index: Tensor,
    sampling_locations: Tensor, attention_weights: Tensor, im2col_step: int,
) -> Tensor:  # fmt: skip
    """Return the weighted sum (B, Q, heads * D) of bilinear samples from maps of several sizes.

    ``value`` (B, S, heads, D) has the pixels of all maps, and the shapes (L, 2) are their heights
    and widths. Locations (B, Q, heads, L, P, 2) are x and y in [0, 1], weights (B, Q, heads, L, P).
    """
    levels = zip(value_spatial_shapes.tolist(), value_level_start_index.tolist())
    return _deform_attn(value, list(levels), sampling_locations, attention_weights)


def ms_deform_attn_backward(
    value: Tensor, value_spatial_shapes: Tensor, value_level_start_index: Tensor,
    sampling_locations: Tensor, attention_weights: Tensor, grad_output: Tensor,
    grad_value: Tensor, grad_sampling_loc: Tensor, grad_attn_weight: Tensor, im2col_step: int,
) -> None:  # fmt: skip
    """Write the gradients of :func:`ms_deform_attn_forward`, which is computed again here."""
    levels = [*zip(value_spatial_shapes.tolist(), value_level_start_index.tolist())]
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
        samples = F.grid_sample(maps, grid, align_corners=False)  # [B * heads, D, Q, P]
        weight = _widen(weights[:, :, :, level]).transpose(1, 2)
        output = output + (samples * weight.reshape(batch * heads, 1, queries, points)).sum(3)
    return output.view(batch, heads * dim, queries).transpose(1, 2).to(value.dtype)


def _widen(x: Tensor) -> Tensor:
    """Return x in float32 if it is float16 or bfloat16, which torchvision supports in part."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
