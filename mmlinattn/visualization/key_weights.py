"""Weight of every key for one query, comparable across all attentions."""

import math
from contextlib import nullcontext
from pathlib import Path
from typing import ContextManager, Dict, Sequence, Tuple, Union
from unittest.mock import patch

import cv2
import numpy as np
import torch
from matplotlib.figure import Figure
from mmengine.model import BaseModel
from mmengine.utils import to_2tuple
from torch import Tensor, nn

from ..models.layers import AdditiveAttention, BaseAttention, RippleAttention
from ..models.layers.attend_calls import Call, calls_of
from .files import save_figure

# One key in 200 gets full colour: a single large weight would make all others pale.
SATURATED = 200
FAINT = 5  # a uniform row has a fifth of the full opacity
COLUMNS = 5  # panels of a row
RED, BLUE = (0.85, 0.1, 0.1), (0.1, 0.25, 0.9)


def key_weights(attn: BaseAttention, call: Call, position: Tuple[int, int]) -> Tensor:
    """Return the weight of every key for one query of the first image.

    In each head the weight is the derivative of the output at the query by the value of a key,
    averaged over channels: the mean over d of ``d out[i, c] / d v[j, c]``. Autograd computes it in
    O(N) memory for any attention. If outputs are linear in the values, as in most attentions, it is
    exactly the weight ``w_ij`` of ``out_i = sum_j w_ij v_j``. Exceptions:

    - Ripple attention computes its ring weights from the values. They are held constant, so that
      the rest is linear.
    - Hydra attention weights each channel separately: the result is their mean.
    - Linear angular attention (``form='released'``) divides by the norm of its sum: the derivative
      is ``(1 - 1 / d) w_ij / norm``.
    - Test-time-training attention clips the step that the values make: the derivative includes it.
    - Core attention has cores of its own that read the values before the query reads them: the
      derivative includes it. In a ViT it is 0, since tokens read the cores of the layer before.
    - Additive attention reads no value except the query's own and pools the keys. The derivative
      is by keys and includes the softmax that weights them.

    Gates, local position and the output projection follow the attention and are not included.

    Args:
        attn: any attention, in eval mode because dropout would change the weights.
        call: an element of the list of :func:`mmlinattn.models.layers.attend_calls.calls_of`.
        position: (row, column) of the query.

    Returns:
        (heads, h, w), the size of the map, or of the pooled map if there are fewer keys than
        tokens. Extra tokens are left out.

    Raises:
        ValueError: the position is outside of the map.

    Example:
        >>> from mmlinattn.models.layers.attend_calls import calls_of
        >>> from mmlinattn.models.layers import SoftmaxAttention
        >>> attn = SoftmaxAttention(8, 2)
        >>> with calls_of(attn) as calls:
        ...     out = attn(torch.randn(1, 6, 8), (2, 3))
        >>> weights = key_weights(attn, calls[0], (1, 2))
        >>> weights.shape, bool(torch.allclose(weights.sum((1, 2)), torch.ones(2)))
        (torch.Size([2, 2, 3]), True)
    """
    (row, column), (height, width) = position, call.tokens.hw_shape
    if not (0 <= row < height and 0 <= column < width):
        raise ValueError(f'position {tuple(position)} is not on a map of {(height, width)}')
    extra = call.tokens.num_extra_tokens
    mask = call.tokens.key_padding_mask
    tokens = call.tokens._replace(key_padding_mask=None if mask is None else mask[:1])
    q, k, v = (x[:1].detach() for x in call[:3])
    source = k if isinstance(attn, AdditiveAttention) else v
    source.requires_grad_()
    with torch.enable_grad(), _held_rings(attn):
        out = attn.attend(q, k, v, tokens)[0, :, extra + row * width + column]  # [h, d]
    weights = torch.zeros_like(source[0, :, :, 0])  # [h, N]
    for head in range(out.shape[0]):
        for channel in range(out.shape[1]):
            (grad,) = torch.autograd.grad(out[head, channel], source, retain_graph=True)
            weights[head] += grad[0, head, :, channel]
    if mask is not None and weights.shape[1] == mask.shape[1]:
        weights = weights.masked_fill(mask[:1], 0)  # values of padding are cleared before the call
    weights = weights[:, extra:] / out.shape[1]
    return weights.unflatten(1, key_shape(weights.shape[1], (height, width))).detach()


def stride_of(
    model: BaseModel, attn: BaseAttention, size: Tuple[int, int], hw_shape: Tuple[int, int]
) -> int:
    """Return the pixels between neighbouring tokens of a map (h, w) of an image (H, W)."""
    kinds = (nn.Conv2d, nn.MaxPool2d, nn.AvgPool2d)
    layers = [layer for layer in model.backbone.modules() if isinstance(layer, kinds)]
    factor = math.lcm(*(side for layer in layers for side in to_2tuple(layer.stride)))
    stride, rest = divmod(size[0], hw_shape[0])
    is_whole = not rest and size[1] == stride * hw_shape[1]
    if is_whole and not (stride % factor and factor % stride):
        return stride
    odd = factor // (factor & -factor)  # such as 7 of patches of 14
    side = 256 if odd == 1 else 64 * odd
    with calls_of(attn) as calls, torch.no_grad():
        maps = getattr(model, 'extract_feat', model.backbone)(torch.zeros(1, 3, side, side))
    # The encoder of a detector attends to the last map.
    return side // (calls[0].tokens.hw_shape[0] if calls else maps[-1].shape[-2])


def _held_rings(attn: BaseAttention) -> ContextManager[object]:
    """Hold ring weights constant, although they are computed from the values."""
    if not isinstance(attn, RippleAttention):
        return nullcontext()
    logits = attn.logits
    return patch.object(attn, 'logits', lambda v: logits(v).detach())


def key_shape(count: int, hw_shape: Sequence[int]) -> Tuple[int, int]:
    """Return (h, w) of ``count`` keys that pool cells of R x R tokens of a map."""
    height, width = hw_shape
    for side in range(1, max(height, width) + 1):
        whole, begun = (height // side, width // side), (-(-height // side), -(-width // side))
        for shape in (whole, begun):
            if shape[0] * shape[1] == count:
                return shape
    raise ValueError(f'{count} keys are no cells of a map of {tuple(hw_shape)}')


def reach(weights: Tensor) -> float:
    """Return the smallest share of keys with half of the total absolute weight, in 0..1."""
    sizes = weights.abs().flatten().double().sort(descending=True).values
    enough = sizes.cumsum(0) >= sizes.sum() / 2 * (1 - 1e-9)
    return (int(enough.int().argmax()) + 1) / len(sizes)


def weight_scale(weights: Tensor) -> float:
    """Return the weight that is drawn opaque: the 99.5th percentile of the absolute weights.

    It is at least ``FAINT`` times the mean absolute weight, so that a uniform row is faint.
    """
    sizes = weights.detach().float().abs().flatten()
    largest = float(sizes.topk(1 + len(sizes) // SATURATED).values[-1])
    return max(largest, FAINT * float(sizes.mean()), 1e-30)


def overlay(image: np.ndarray, weights: Tensor) -> np.ndarray:
    """Return an image (H, W, 3) uint8 in pale grey under the weights (h, w) of its keys.

    Positive weights are red, negative ones blue. Opacity is the weight over :func:`weight_scale`.
    """
    weights = weights.detach().float().cpu()
    strength = (weights / weight_scale(weights)).clamp(-1, 1).numpy()
    size = image.shape[1::-1]
    strength = cv2.resize(strength, size, interpolation=cv2.INTER_NEAREST)[..., None]
    grey = image.mean(-1, keepdims=True) * 0.35 + 0.65 * 255
    color = np.where(strength > 0, RED, BLUE)
    return (grey * (1 - abs(strength)) + 255 * color * abs(strength)).round().astype(np.uint8)


def draw_key_weights(
    path: Union[str, Path],
    image: np.ndarray,
    weights: Dict[str, Tensor],
    pixel: Tuple[float, float],
) -> Path:
    """Draw the picture with the query, then one panel per attention, and return the path.

    Each panel has its own colour scale, see :func:`overlay`: panels compare where weights lie, not
    how large they are. The number is :func:`reach`.

    Args:
        path: file to write, in a format that matplotlib supports.
        image: (H, W, 3) uint8 RGB, in the input size of the network.
        weights: weights (heads, h, w) by title; panels show the mean over the heads.
        pixel: (x, y) of the query.

    Raises:
        ValueError: ``weights`` is empty.
    """
    if not weights:
        raise ValueError('weights is empty: nothing to draw')
    panels = {'picture and query': image}
    for title, heads in weights.items():
        mean = heads.detach().float().cpu().mean(0)
        panels[f'{title}\nhalf in {100 * reach(mean):.1f}%'] = overlay(image, mean)
    rows, (height, width) = -(-len(panels) // COLUMNS), image.shape[:2]
    side = 1.75
    figure = Figure(figsize=(side * COLUMNS, (side * height / width + 0.36) * rows), dpi=100)
    for i, (title, picture) in enumerate(panels.items(), 1):
        axes = figure.add_subplot(rows, COLUMNS, i)
        axes.set_axis_off()
        axes.imshow(picture)
        axes.set_title(title, fontsize=8)
        for color, edge in (('black', 2.2), ('white', 1)):
            axes.plot(*pixel, 'o', markersize=6, markerfacecolor='none', color=color, mew=edge)
    figure.tight_layout(pad=0.4)
    return save_figure(figure, path, bbox_inches='tight', pad_inches=0.05)
