"""SMCA attention maps: Gaussian maps of the decoder and learnt ring weights of the encoder."""

from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, Iterator, List, Sequence, Tuple, Union

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor, nn

from ..ops.ripple.groups import group_radii
from .files import save_figure


@dataclass
class AttentionRecord:
    """Attention of the first image in the last forward pass inside :func:`record`.

    Attributes:
        hw_shape: (H, W) of the feature map.
        maps: logarithms of Gaussians by decoder layer, (heads, Q, H * W).
        reference: (Q, 2), centres of the maps, x and y in cells.
        scores: (Q, classes) in 0..1, of the last layer.
        boxes: (Q, 4) as cx, cy, w, h in 0..1 of the image, of the last layer.
        ring_weights: weights of the rings around each position, (heads, H * W, rings), by encoder
            layer; only layers whose attention has ``spatial_weights``.
        ring_groups: ``groups`` of the attention (the ring widths) of the same layers.
    """

    hw_shape: Tuple[int, int] = (0, 0)
    maps: Dict[int, Tensor] = field(default_factory=dict)
    reference: Tensor = field(default_factory=lambda: torch.empty(0, 2))
    scores: Tensor = field(default_factory=lambda: torch.empty(0, 1))
    boxes: Tensor = field(default_factory=lambda: torch.empty(0, 4))
    ring_weights: Dict[int, Tensor] = field(default_factory=dict)
    ring_groups: Dict[int, str] = field(default_factory=dict)

    def best(self, count: int) -> List[int]:
        """Return the queries with the highest scores, best first."""
        scores = self.scores.amax(-1)
        return scores.topk(min(count, len(scores))).indices.tolist()


@contextmanager
def record(model: nn.Module) -> Iterator[AttentionRecord]:
    """Record the attention of an SMCA detector inside the block, without gradients.

    Args:
        model: the detector.

    Raises:
        TypeError: the model is not SMCA.
        ValueError: its decoder has another cross-attention than the modulated one.

    Example::

        with record(model) as seen:
            inference_detector(model, 'image.jpg')
        seen.maps[5][:, seen.best(1)[0]]  # (heads, H * W), the best query in the last layer
    """
    from ..models.detectors import SMCA

    if not isinstance(model, SMCA):
        raise TypeError(f'model must be a SMCA detector, got {type(model).__name__}')
    if not all(layer.modulated for layer in model.decoder.layers):
        raise ValueError(
            'the decoder has no maps to draw: its cross_attn_cfg replaces the modulated attention'
        )
    seen = AttentionRecord()

    def keep_points(decoder, args, _) -> None:
        query, query_pos, memory, image_sizes = args
        seen.hw_shape = tuple(memory.hw_shape)
        seen.reference = decoder.predict_points(query, query_pos, image_sizes)[1][0]

    def keep_outputs(_, args, out) -> None:
        seen.scores, seen.boxes = out[0][-1, 0].sigmoid(), out[1][-1, 0]

    def keep_map(index: int):
        return lambda _, args: seen.maps.update({index: args[3][0]})

    def keep_rings(index: int):
        def keep(attn, args) -> None:
            values = attn.split_heads(attn.project_parts((args[0], 3))[0].chunk(3, -1)[2])
            seen.ring_weights[index] = attn.spatial_weights(values)[0]
            seen.ring_groups[index] = attn.groups

        return keep

    hooks = [
        model.decoder.register_forward_hook(keep_points),
        model.bbox_head.register_forward_hook(keep_outputs),
    ]
    for i, layer in enumerate(model.decoder.layers):
        hooks.append(layer.cross_attn.register_forward_pre_hook(keep_map(i)))
    for i, layer in enumerate(model.encoder.layers):
        if hasattr(layer.self_attn, 'spatial_weights'):
            hooks.append(layer.self_attn.register_forward_pre_hook(keep_rings(i)))
    try:
        with torch.no_grad():
            yield seen
    finally:
        for hook in hooks:
            hook.remove()


def ring_map(
    weights: Tensor,
    position: Tuple[int, int],
    hw_shape: Sequence[int],
    groups: str = 'chebyshev',
) -> Tensor:
    """Return the weights of the rings around a position as a map.

    Args:
        weights: (..., rings), from the centre outwards; the last ring is all cells beyond.
        position: (row, column) of the centre.
        hw_shape: (H, W).
        groups: ring widths, see :func:`mmlinattn.ops.ripple_attention`.

    Returns:
        (..., H, W).

    Raises:
        ValueError: the position is outside of the map.

    Example:
        >>> ring_map(torch.tensor([3.0, 2.0, 1.0]), (0, 1), (2, 4))
        tensor([[2., 3., 2., 1.],
                [2., 2., 2., 1.]])
    """
    (row, column), (height, width) = position, hw_shape
    if not (0 <= row < height and 0 <= column < width):
        raise ValueError(f'position {tuple(position)} is not on a map of {tuple(hw_shape)}')
    rows = (torch.arange(height, device=weights.device) - row).abs()
    columns = (torch.arange(width, device=weights.device) - column).abs()
    distance = torch.maximum(rows[:, None], columns)
    radii = torch.tensor(group_radii(weights.shape[-1] - 1, groups), device=weights.device)
    return weights[..., (distance[..., None] > radii).sum(-1)]


def draw_decoder_maps(
    path: Union[str, Path],
    image: np.ndarray,
    seen: AttentionRecord,
    stride: int,
    classes: Sequence[str],
    count: int = 4,
) -> Path:
    """Draw the best queries, one row each: the box, then its map in every decoder layer.

    Maps are the mean over the heads.

    Args:
        path: PNG file to write.
        image: (H, W, 3) uint8 RGB, in the input size of the network.
        seen: result of :func:`record`.
        stride: pixels per cell.
        classes: class names.
        count: number of queries.
    """
    layers = sorted(seen.maps)
    queries, sides = seen.best(count), torch.tensor(image.shape[1::-1]).repeat(2)
    figure, grid = _grid(image, len(queries), 1 + len(layers))
    for i, (query, row) in enumerate(zip(queries, grid)):
        label = int(seen.scores[query].argmax())
        cx, cy, w, h = (seen.boxes[query].cpu() * sides).tolist()
        row[0].imshow(image)
        row[0].add_patch(Rectangle((cx - w / 2, cy - h / 2), w, h, fill=False, ec='red', lw=1.5))
        row[0].set_axis_off()
        title = f'{classes[label]} {float(seen.scores[query, label]):.2f}'
        row[0].set_title(title, fontsize=9)
        x, y = (stride * seen.reference[query]).tolist()
        for axes, layer in zip(row[1:], layers):
            values = seen.maps[layer][:, query].float().exp().mean(0).unflatten(0, seen.hw_shape)
            _draw_map(axes, image, values, stride)
            axes.plot(x, y, '+', color='white', markersize=8)
            if i == 0:
                axes.set_title(f'decoder layer {layer + 1}', fontsize=9)
    figure.tight_layout()
    return save_figure(figure, path)


def draw_ring_weights(
    path: Union[str, Path],
    image: np.ndarray,
    seen: AttentionRecord,
    stride: int,
    position: Tuple[int, int],
) -> Path:
    """Draw ring weights: one row per encoder layer that has them, one panel per head.

    The numbers of a panel are the weights of its rings, from the centre outwards; the last one is
    that of all cells beyond. Each panel has its own colour scale; black is 0.

    Args:
        path, image, seen, stride: see :func:`draw_decoder_maps`.
        position: (row, column) of the centre.

    Raises:
        ValueError: the position is outside of the map.
    """
    row, column = position
    layers = sorted(seen.ring_weights)
    figure, grid = _grid(image, len(layers), len(seen.ring_weights[layers[0]]))
    for layer, panels in zip(layers, grid):
        weights = seen.ring_weights[layer][:, row * seen.hw_shape[1] + column].float()
        maps = ring_map(weights, position, seen.hw_shape, seen.ring_groups[layer])
        for head, axes in enumerate(panels):
            _draw_map(axes, image, maps[head], stride)
            numbers = ' '.join(f'{weight:.2f}'.lstrip('0') for weight in weights[head].tolist())
            axes.set_title(f'layer {layer + 1}, head {head + 1}\n{numbers}', fontsize=8)
            axes.plot(stride * column, stride * row, '+', color='white')
    figure.tight_layout()
    return save_figure(figure, path)


def _grid(image: np.ndarray, rows: int, columns: int) -> tuple:
    aspect = image.shape[0] / image.shape[1]
    figure = Figure(figsize=(2.4 * columns, (2.4 * aspect + 0.4) * rows), dpi=110)
    return figure, figure.subplots(rows, columns, squeeze=False)


def _draw_map(axes, image: np.ndarray, values: Tensor, stride: int) -> None:
    """Draw a map over a grey image; as in SMCA, the centre of cell i is pixel i * stride."""
    axes.imshow(image.mean(-1), cmap='gray', vmin=0, vmax=255)
    height, width = values.shape
    extent = [stride * side for side in (-0.5, width - 0.5, height - 0.5, -0.5)]
    axes.imshow(values.cpu().numpy(), extent=extent, cmap='inferno', alpha=0.65, vmin=0)
    axes.set(xlim=(0, image.shape[1]), ylim=(image.shape[0], 0))
    axes.set_axis_off()
