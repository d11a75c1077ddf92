"""SMCA attention maps: the Gaussian maps of the decoder."""

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, Iterator, List, Sequence, Tuple, Union

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor, nn

from .files import save_figure


@dataclass
class AttentionRecord:
    """Attention of the first image in the last forward pass inside :func:`record`."""

    hw_shape: Tuple[int, int] = (0, 0)
    # Logarithms of Gaussians by decoder layer, [heads, Q, H * W].
    maps: Dict[int, Tensor] = field(default_factory=dict)
    # Centres of the maps, [Q, 2], x and y in cells.
    reference: Tensor = field(default_factory=lambda: torch.empty(0, 2))
    # Of the last layer: scores in 0..1, and cx, cy, w, h in 0..1 of the image.
    scores: Tensor = field(default_factory=lambda: torch.empty(0, 1))
    boxes: Tensor = field(default_factory=lambda: torch.empty(0, 4))

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
        found = type(model).__name__
        cure = 'mmlinattn analyze key-weights draws those of other models'
        raise TypeError(f'the model must be an SMCA detector, got {found}; {cure}')
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

    with torch.no_grad(), ExitStack() as hooks:
        hooks.enter_context(model.decoder.register_forward_hook(keep_points))
        hooks.enter_context(model.bbox_head.register_forward_hook(keep_outputs))
        for i, layer in enumerate(model.decoder.layers):
            hooks.enter_context(layer.cross_attn.register_forward_pre_hook(keep_map(i)))
        yield seen


def draw_decoder_maps(
    path: Union[str, Path],
    image: np.ndarray,
    seen: AttentionRecord,
    stride: int,
    classes: Sequence[str],
    count: int = 4,
) -> Path:
    """Draw the best queries, one row each: the box, then its map in every decoder layer.

    Maps are the mean over the heads. The image (H, W, 3) uint8 RGB has the input size of the
    network, ``stride`` pixels per cell.
    """
    layers = sorted(seen.maps)
    queries, sides = seen.best(count), torch.tensor(image.shape[1::-1]).repeat(2)
    rows, columns, aspect = len(queries), 1 + len(layers), image.shape[0] / image.shape[1]
    figure = Figure(figsize=(2.4 * columns, (2.4 * aspect + 0.4) * rows), dpi=110)
    grid = figure.subplots(rows, columns, squeeze=False)
    for i, (query, row) in enumerate(zip(queries, grid)):
        label = int(seen.scores[query].argmax())
        cx, cy, w, h = (seen.boxes[query].cpu() * sides).tolist()
        row[0].imshow(image)
        row[0].add_patch(Rectangle((cx - w / 2, cy - h / 2), w, h, fill=False, ec='red', lw=1.5))
        row[0].set_axis_off()
        title = f'{classes[label]} {float(seen.scores[query, label]):.2f}'
        row[0].set_title(title, fontsize=9, parse_math=False)  # names of classes may have $
        x, y = (stride * seen.reference[query]).tolist()
        for axes, layer in zip(row[1:], layers):
            values = seen.maps[layer][:, query].float().exp().mean(0).unflatten(0, seen.hw_shape)
            _draw_map(axes, image, values, stride)
            axes.plot(x, y, '+', color='white', markersize=8)
            if i == 0:
                axes.set_title(f'decoder layer {layer + 1}', fontsize=9)
    figure.tight_layout()
    return save_figure(figure, path)


def _draw_map(axes, image: np.ndarray, values: Tensor, stride: int) -> None:
    """Draw a map over a grey image; as in SMCA, the centre of cell i is pixel i * stride."""
    axes.imshow(image.mean(-1), cmap='gray', vmin=0, vmax=255)
    height, width = values.shape
    extent = [stride * side for side in (-0.5, width - 0.5, height - 0.5, -0.5)]
    axes.imshow(values.cpu().numpy(), extent=extent, cmap='inferno', alpha=0.65, vmin=0)
    axes.set(xlim=(0, image.shape[1]), ylim=(image.shape[0], 0))
    axes.set_axis_off()
