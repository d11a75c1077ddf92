"""Attention maps of a single query, drawn over the image."""

from contextlib import contextmanager
from typing import Iterator, List, NamedTuple, Optional, Sequence, Tuple

import cv2
import numpy as np
import torch
from matplotlib import colormaps
from mmengine.model import BaseModel
from torch import Tensor, nn

from ..apis import Predictor
from ..models.layers import BaseAttention, LinearCrossAttention, RippleAttention
from ..models.layers.attend_calls import Call, calls_of
from ..visualization.attention_maps import AttentionRecord, record, ring_map
from ..visualization.key_weights import key_weights, reach, weight_colors, weight_scale
from ..visualization.predictions import enlarged
from .crop_transform import CropTransform, Grid, enlarged_pixel, measure_crop

NEARLY_UNIFORM = 0.4  # share of the keys with half of the weight; 0.5 in a uniform row
BAR_STEPS, LEAST_GAP = 33, 0.06  # of the colour bar: colours, and space between two texts
OPACITY = 0.8  # default of the strongest colours, below which the image is seen


class View(NamedTuple):
    """Attention map that the page can show.

    Attributes:
        title: title on the page.
        kind: ``'keys'``, a row of the attention matrix; ``'rings'``, the ring weights of ripple
            attention; ``'gaussians'``, the spatial attention of a decoder layer of SMCA.
        module: name of the module in the model.
        heads: number of heads.
    """

    title: str
    kind: str
    module: str
    heads: int = 1


class ColorBar(NamedTuple):
    """Colours of an attention map.

    Attributes:
        colors: RGB in 0..255, evenly spaced over the values.
        ticks: place in 0..1 and text.
    """

    colors: List[Tuple[int, int, int]]
    ticks: List[Tuple[float, str]]


class Explanation(NamedTuple):
    """Attention map of a query.

    Attributes:
        picture: (F * H, F * W, 3) uint8 RGB.
        text: description of the picture, with numbers.
        bar: colours and their values.
    """

    picture: np.ndarray
    text: str
    bar: ColorBar


class AttentionMap(NamedTuple):
    """Attention of a query by head, and where it lies in the picture.

    Attributes:
        kind: see :class:`View`.
        weights: (heads, h, w) float32, on the CPU.
        grid: cells of the map in pixels of the picture.
        mark: centre (x, y) of the query in the picture.
        text: description of the query.
        box: corners of the object of a ``'gaussians'`` view.
    """

    kind: str
    weights: Tensor
    grid: Grid
    mark: Tuple[float, float]
    text: str
    box: Sequence[int] = ()


def views_of(model: BaseModel) -> List[View]:
    """Return the views that :func:`explain` accepts for a model, in the order of the network."""
    views, smca = [], _is_smca(model)
    decoding = [m.attn for m in model.modules() if isinstance(m, LinearCrossAttention)]
    for name, module in model.named_modules():
        if (smca and name.startswith('decoder.')) or module in decoding:
            continue  # object queries belong to no cell
        if isinstance(module, BaseAttention):
            place = name.removesuffix('.attn').removesuffix('.self_attn')
            title = f'{place}: {type(module).__name__.removesuffix("Attention")}'
            views.append(View(f'{title}, keys', 'keys', name, module.num_heads))
            if isinstance(module, RippleAttention):
                views.append(View(f'{title}, rings', 'rings', name, module.num_heads))
    if smca:
        for index, layer in enumerate(model.decoder.layers):
            if not layer.modulated:
                continue
            title, name = f'decoder.layers.{index}: Gaussians', f'decoder.layers.{index}'
            views.append(View(f'{title} of the object', 'gaussians', name, layer.num_heads))
    return views


def explain(
    predictor: Predictor,
    image: np.ndarray,
    view: View,
    pixel: Tuple[float, float],
    enlarge: int = 1,
    head: Optional[int] = None,
    opacity: float = OPACITY,
) -> Explanation:
    """Draw the attention map of the query at a pixel.

    For arguments and errors see :func:`attention_map` and :func:`draw_map`.
    """
    found = attention_map(predictor, image, view, pixel, enlarge)
    return draw_map(found, image, enlarge, head, opacity)


def attention_map(
    predictor: Predictor,
    image: np.ndarray,
    view: View,
    pixel: Tuple[float, float],
    enlarge: int = 1,
) -> AttentionMap:
    """Compute the attention map of the query at a pixel.

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
                img_shape = predictor.predict(image).sample.img_shape
        else:
            attn = predictor.model.get_submodule(view.module)
            with calls_of(attn) as calls:
                predictor.predict(image)
    if len(sizes) != 1:
        raise ValueError(
            f'the model reads an image of {width} x {height} in {len(sizes)} crops; '
            "what a query looks at is known for whole images (test_cfg.mode='whole')"
        )
    crop = measure_crop(predictor, (height, width), sizes[0]).enlarged(enlarge)
    pixel = (enlarged_pixel(pixel[0], enlarge), enlarged_pixel(pixel[1], enlarge))
    if view.kind == 'gaussians':
        layer = int(view.module.rsplit('.', 1)[1])
        return _gaussians(predictor, seen, layer, img_shape[:2], crop, pixel)
    if not calls:
        raise ValueError(f'{view.module} did not run')
    stride = predictor.model.decoder.stride if _is_smca(predictor.model) else None
    return (_keys if view.kind == 'keys' else _rings)(attn, calls[0], crop, stride, pixel)


def draw_map(
    found: AttentionMap,
    image: np.ndarray,
    enlarge: int = 1,
    head: Optional[int] = None,
    opacity: float = OPACITY,
) -> Explanation:
    """Draw an attention map over the image.

    Args:
        found: result of :func:`attention_map`.
        image: (H, W, 3) uint8 BGR.
        enlarge: as in :func:`attention_map`.
        head: index of the head; None for the mean over the heads.
        opacity: factor of the opacity of the colours, 0..1.

    Raises:
        ValueError: the map has no such head.
    """
    heads = len(found.weights)
    if head is not None and not 0 <= head < heads:
        raise ValueError(f'head {head} is not one of the {heads} heads of this layer')
    weights = found.weights.mean(0) if head is None else found.weights[head]
    which = 'mean over the heads' if head is None else f'head {head + 1} of {heads}'
    which = 'one head' if heads == 1 else which
    picture = enlarged(cv2.cvtColor(image, cv2.COLOR_BGR2RGB), enlarge)
    if found.kind == 'keys':
        colors, bar, text = _signed(weights, opacity)
    else:
        colors, bar, text = _heat(weights, opacity)
    picture = found.grid.paint(picture, colors)
    if found.box:
        cv2.rectangle(picture, tuple(found.box[:2]), tuple(found.box[2:]), (220, 30, 30), 2)
    return Explanation(_mark(picture, found.mark), f'{found.text} Shown: {which}. {text}', bar)


def _keys(attn: BaseAttention, call: Call, crop: CropTransform, stride, pixel) -> AttentionMap:
    shape = call.tokens.hw_shape
    queries = crop.grid(shape, stride)
    row, column = queries.cell(*pixel)
    weights = key_weights(attn, call, (row, column)).float().cpu()
    # With fewer keys than queries, each key covers a larger cell.
    step = None if stride is None else stride * shape[1] / weights.shape[2]
    grid = crop.grid((weights.shape[1], weights.shape[2]), step)
    text = _where(attn, row, column, shape)
    return AttentionMap('keys', weights, grid, queries.middle(row, column), text)


def _rings(attn: RippleAttention, call: Call, crop: CropTransform, stride, pixel) -> AttentionMap:
    shape = call.tokens.hw_shape
    grid = crop.grid(shape, stride)
    row, column = grid.cell(*pixel)
    with torch.no_grad():
        values = call.tokens.split_extra(call.v[:1], 2)[1]
        weights = attn.spatial_weights(values)[0, :, row * shape[1] + column].float().cpu()
    numbers = ', '.join(f'{weight:.3f}' for weight in weights.mean(0).tolist())
    text = (
        f'{_where(attn, row, column, shape)} Mean weights of the rings, from the middle outwards: '
        f'{numbers}; the last is of all beyond.'
    )
    maps = ring_map(weights, (row, column), shape, attn.groups)
    return AttentionMap('rings', maps, grid, grid.middle(row, column), text)


def _gaussians(
    predictor: Predictor, seen: AttentionRecord, layer: int, img_shape, crop: CropTransform, pixel
) -> AttentionMap:
    grid = crop.grid(seen.hw_shape, predictor.model.decoder.stride)
    # Boxes are relative to the resized image; convert them to pixels of the picture.
    scale, offset = torch.tensor(crop.scale), torch.tensor(crop.offset)
    sides = torch.tensor([img_shape[1], img_shape[0]])
    boxes = seen.boxes.cpu().float()
    middles, halves = boxes[:, :2] * sides * scale + offset, boxes[:, 2:] * sides * scale / 2
    query = surest_at(middles, halves, seen.scores.amax(-1).cpu(), pixel)
    maps = seen.maps[layer][:, query].float().exp().unflatten(1, seen.hw_shape).cpu()
    corners = torch.cat([middles - halves, middles + halves], 1)[query].round().int().tolist()
    x, y = seen.reference[query].tolist()
    label = int(seen.scores[query].argmax())
    text = (
        f'Object query {query}: {predictor.classes[label]} {seen.scores[query, label]:.2f}, the '
        f'red box. Where it looks in decoder layer {layer + 1}.'
    )
    return AttentionMap('gaussians', maps, grid, grid.middle(y, x), text, corners)


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
        f'{type(attn).__name__}: the query in row {row + 1}, column {column + 1} of '
        f'{shape[0]} x {shape[1]} cells.'
    )


def _signed(weights: Tensor, opacity: float) -> Tuple[np.ndarray, ColorBar, str]:
    """Return colours (h, w, 4), their bar and a text for the weights (h, w) of the keys."""
    scale, mean = weight_scale(weights), float(weights.abs().mean())
    colors = weight_colors(weights, scale)
    low = -scale if float(weights.min()) < -scale / 100 else 0.0
    values = weight_colors(torch.linspace(low, scale, BAR_STEPS)[None], scale)[0]
    uniform, unit = (mean - low) / (scale - low), max(mean, 1e-30)
    ticks = [(uniform, 'uniform'), (1.0, f'{scale / unit:.1f} x uniform')]
    if uniform > LEAST_GAP:
        ticks.insert(0, (0.0, f'{low / unit:.1f}' if low else '0'))
    share = reach(weights)
    text = f'Half of all weight is in {100 * share:.1f}% of the keys'
    text += ': nearly uniform.' if share >= NEARLY_UNIFORM else '.'
    text += ' Red adds, blue takes away.' if low else ''
    return _faded(colors, opacity), _bar(_faded(values, opacity), ticks), text


def _heat(weights: Tensor, opacity: float) -> Tuple[np.ndarray, ColorBar, str]:
    """Return colours (h, w, 4), their bar and a text for non-negative weights (h, w)."""
    largest = max(float(weights.max()), 1e-30)
    colors, values = (
        colormaps['inferno'](x) for x in ((weights / largest).numpy(), np.linspace(0, 1, BAR_STEPS))
    )
    ticks = [(0.0, '0'), (1.0, f'{largest:.2g}')]
    same = float(weights.min()) > 0.9 * largest
    text = 'All weights are nearly the same.' if same else ''
    return _faded(colors, opacity), _bar(_faded(values, opacity), ticks), text


def _faded(colors: np.ndarray, opacity: float) -> np.ndarray:
    return np.concatenate([colors[..., :3], opacity * colors[..., 3:]], -1)


def _bar(colors: np.ndarray, ticks: List[Tuple[float, str]]) -> ColorBar:
    """Return the bar of RGBA colours (n, 4) over the grey of a picture of medium brightness."""
    grey = Grid((1, len(colors)), (1, 1), (0, 0)).paint(
        np.full((1, len(colors), 3), 128, np.uint8), colors[None]
    )
    return ColorBar([(int(r), int(g), int(b)) for r, g, b in grey[0]], ticks)


def _mark(picture: np.ndarray, at: Tuple[float, float]) -> np.ndarray:
    radius = max(3, round(max(picture.shape) / 60))
    middle = (round(at[0]), round(at[1]))
    cv2.circle(picture, middle, radius, (0, 0, 0), 4, cv2.LINE_AA)
    cv2.circle(picture, middle, radius, (255, 255, 255), 2, cv2.LINE_AA)
    return picture


@contextmanager
def _input_sizes(model: BaseModel) -> Iterator[List[Tuple[int, int]]]:
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
