"""Attention maps of a single query, drawn over the image."""

from contextlib import contextmanager
from typing import Iterator, List, NamedTuple, Tuple

import cv2
import numpy as np
import torch
from matplotlib import colormaps
from torch import Tensor, nn

from ..apis import Predictor
from ..models.layers import BaseAttention, RippleAttention
from ..visualization.attention_maps import Record, record, ring_map
from ..visualization.key_weights import Call, calls_of, key_weights, reach, weight_colors
from ..visualization.predictions import enlarged
from .crop_transform import Sight, enlarged_pixel, sight_of


class View(NamedTuple):
    """Attention map that the page can show.

    Attributes:
        title: title on the page.
        kind: ``'keys'``, a row of the attention matrix; ``'rings'``, the ring weights of ripple
            attention; ``'gaussians'``, the spatial attention of a decoder layer of SMCA.
        module: name of the module in the model.
    """

    title: str
    kind: str
    module: str


class Explanation(NamedTuple):
    """Attention map of a query.

    Attributes:
        picture: (F * H, F * W, 3) uint8 RGB.
        text: description of the picture, with numbers.
    """

    picture: np.ndarray
    text: str


def views_of(model: nn.Module) -> List[View]:
    """Return the views that :func:`explain` accepts for a model, in the order of the network."""
    views, smca = [], _is_smca(model)
    for name, module in model.named_modules():
        if smca and name.startswith('decoder.'):
            continue  # object queries belong to no cell
        if isinstance(module, BaseAttention):
            place = name.removesuffix('.attn').removesuffix('.self_attn')
            title = f'{place}: {type(module).__name__.removesuffix("Attention")}'
            views.append(View(f'{title}, keys', 'keys', name))
            if isinstance(module, RippleAttention):
                views.append(View(f'{title}, rings', 'rings', name))
    if smca:
        for index in range(len(model.decoder.layers)):
            name = f'decoder.layers.{index}'
            views.append(View(f'{name}: Gaussians of the object', 'gaussians', name))
    return views


def explain(
    predictor: Predictor,
    image: np.ndarray,
    view: View,
    pixel: Tuple[float, float],
    enlarge: int = 1,
) -> Explanation:
    """Draw the attention map of the query at a pixel.

    Args:
        predictor: predictor with the model.
        image: (H, W, 3) uint8 BGR.
        view: one of :func:`views_of`.
        pixel: (x, y) in the image; the query is the nearest cell of the layer's map. For a
            ``'gaussians'`` view it is the object with the highest score whose box contains the
            pixel, or else the one with the nearest centre.
        enlarge: scale factor F of the picture, which keeps the cells of small images sharp.

    Raises:
        ValueError: the pixel is outside the image, the model reads the image in crops, or the
            attention did not run.
    """
    height, width = image.shape[:2]
    if not (0 <= pixel[0] < width and 0 <= pixel[1] < height):
        raise ValueError(f'pixel {tuple(pixel)} is not on an image of {width} x {height}')
    with _input_sizes(predictor.model) as sizes:
        if view.kind == 'gaussians':
            with record(predictor.model) as seen:
                img_shape = predictor(image).sample.img_shape
        else:
            attn = predictor.model.get_submodule(view.module)
            with calls_of(attn) as calls:
                predictor(image)
    if len(sizes) != 1:
        raise ValueError(
            f'the model reads an image of {width} x {height} in {len(sizes)} crops; '
            "what a query looks at is known for whole images (test_cfg.mode='whole')"
        )
    sight = sight_of(predictor, (height, width), sizes[0]).enlarged(enlarge)
    picture = enlarged(cv2.cvtColor(image, cv2.COLOR_BGR2RGB), enlarge)
    pixel = (enlarged_pixel(pixel[0], enlarge), enlarged_pixel(pixel[1], enlarge))
    if view.kind == 'gaussians':
        layer = int(view.module.rsplit('.', 1)[1])
        return _gaussians(predictor, picture, seen, layer, img_shape[:2], sight, pixel)
    if not calls:
        raise ValueError(f'{view.module} did not run')
    stride = predictor.model.decoder.stride if _is_smca(predictor.model) else None
    draw = _keys if view.kind == 'keys' else _rings
    return draw(attn, calls[0], picture, sight, stride, pixel)


def _keys(attn: BaseAttention, call: Call, picture, sight: Sight, stride, pixel) -> Explanation:
    shape = call.tokens.hw_shape
    queries = sight.grid(shape, stride)
    row, column = queries.cell(*pixel)
    mean = key_weights(attn, call, (row, column)).mean(0)
    # With fewer keys than queries, each key covers a larger cell.
    step = None if stride is None else stride * shape[1] / mean.shape[1]
    painted = sight.grid((mean.shape[0], mean.shape[1]), step).paint(picture, weight_colors(mean))
    text = (
        f'{_where(attn, row, column, shape)} Half of all weight is in {100 * reach(mean):.1f}% of '
        'the keys. Red adds, blue takes away.'
    )
    return Explanation(_mark(painted, queries.middle(row, column)), text)


def _rings(attn: RippleAttention, call: Call, picture, sight, stride, pixel) -> Explanation:
    shape = call.tokens.hw_shape
    grid = sight.grid(shape, stride)
    row, column = grid.cell(*pixel)
    with torch.no_grad():
        values = call.tokens.split_extra(call.v[:1], 2)[1]
        weights = attn.spatial_weights(values)[0, :, row * shape[1] + column].float().mean(0).cpu()
    painted = grid.paint(picture, _heat(ring_map(weights, (row, column), shape, attn.groups)))
    numbers = ', '.join(f'{weight:.3f}' for weight in weights.tolist())
    text = (
        f'{_where(attn, row, column, shape)} Weights of the rings, from the middle outwards: '
        f'{numbers}; the last is of all beyond.'
    )
    return Explanation(_mark(painted, grid.middle(row, column)), text)


def _gaussians(
    predictor: Predictor, picture, seen: Record, layer: int, img_shape, sight: Sight, pixel
) -> Explanation:
    grid = sight.grid(seen.hw_shape, predictor.model.decoder.stride)
    # Boxes are relative to the resized image; convert them to pixels of the picture.
    scale, offset = torch.tensor(sight.scale), torch.tensor(sight.offset)
    sides = torch.tensor([img_shape[1], img_shape[0]])
    boxes = seen.boxes.cpu().float()
    middles, halves = boxes[:, :2] * sides * scale + offset, boxes[:, 2:] * sides * scale / 2
    query = surest_at(middles, halves, seen.scores.amax(-1).cpu(), pixel)
    values = seen.maps[layer][:, query].float().exp().mean(0).unflatten(0, seen.hw_shape).cpu()
    painted = grid.paint(picture, _heat(values))
    corners = torch.cat([middles - halves, middles + halves], 1)[query].round().int().tolist()
    cv2.rectangle(painted, tuple(corners[:2]), tuple(corners[2:]), (220, 30, 30), 2)
    x, y = seen.reference[query].tolist()
    label = int(seen.scores[query].argmax())
    text = (
        f'Object query {query}: {predictor.classes[label]} {seen.scores[query, label]:.2f}, the '
        f'red box. Where it looks in decoder layer {layer + 1}, '
        f'{_heads(seen.maps[layer].shape[0])}.'
    )
    return Explanation(_mark(painted, grid.middle(y, x)), text)


def surest_at(middles: Tensor, halves: Tensor, scores: Tensor, pixel: Tuple[float, float]) -> int:
    """Return the best-scoring box that contains a pixel, else the one with the nearest centre.

    Args:
        middles, halves: (Q, 2), centre (x, y) and half of (width, height).
        scores: (Q,).
        pixel: (x, y).

    Example:
        >>> middles, halves = torch.tensor([[2.0, 2], [9, 9], [3, 3]]), torch.full((3, 2), 2.0)
        >>> scores = torch.tensor([0.1, 0.9, 0.5])
        >>> [surest_at(middles, halves, scores, p) for p in ((0, 0), (3, 3), (6, 7))]
        [0, 2, 1]
    """
    away = (middles - torch.tensor(pixel, dtype=middles.dtype)).abs()
    has = (away <= halves).all(-1)
    if has.any():
        return int(scores.masked_fill(~has, -1).argmax())
    return int(away.norm(dim=-1).argmin())


def _where(attn: BaseAttention, row: int, column: int, shape: Tuple[int, int]) -> str:
    return (
        f'{type(attn).__name__}, {_heads(attn.num_heads)}: the query in row {row + 1}, '
        f'column {column + 1} of {shape[0]} x {shape[1]} cells.'
    )


def _heads(count: int) -> str:
    return f'the mean over {count} heads' if count > 1 else 'one head'


def _heat(values: Tensor) -> np.ndarray:
    """Return the heat map (h, w, 4), RGBA, of non-negative values (h, w)."""
    colors = colormaps['inferno']((values / values.max().clamp(min=1e-30)).numpy())
    colors[..., 3] = 0.65
    return colors


def _mark(picture: np.ndarray, at: Tuple[float, float]) -> np.ndarray:
    radius = max(3, round(max(picture.shape) / 60))
    middle = (round(at[0]), round(at[1]))
    cv2.circle(picture, middle, radius, (0, 0, 0), 4, cv2.LINE_AA)
    cv2.circle(picture, middle, radius, (255, 255, 255), 2, cv2.LINE_AA)
    return picture


@contextmanager
def _input_sizes(model: nn.Module) -> Iterator[List[Tuple[int, int]]]:
    """Yield a list to which each call of the backbone adds the (height, width) of its input."""
    sizes: List[Tuple[int, int]] = []
    hook = model.backbone.register_forward_pre_hook(
        lambda _, args: sizes.append(tuple(args[0].shape[-2:]))
    )
    try:
        yield sizes
    finally:
        hook.remove()


def _is_smca(model: nn.Module) -> bool:
    try:
        from ..models.detectors import SMCA
    except ImportError:  # MMDetection is not installed
        return False
    return isinstance(model, SMCA)
