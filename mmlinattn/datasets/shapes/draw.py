"""Images of textured shapes on textured backgrounds, with their labels."""

from typing import List, NamedTuple, Tuple

import cv2
import numpy as np

from ...utils import check_integer

CLASSES = ('circle', 'square', 'triangle', 'star', 'cross')
SEG_CLASSES = ('background', *CLASSES)
PALETTE = [
    [70, 70, 70], [220, 20, 60], [0, 130, 180], [250, 170, 30], [107, 142, 35], [153, 50, 204],
]  # fmt: skip

MIN_IMAGE_SIZE = 32
MIN_SHAPES, MAX_SHAPES = 1, 4
MIN_DIAMETER, MAX_DIAMETER = 24 / 128, 60 / 128  # relative to the image side
MIN_VISIBLE = 0.6  # minimum visible fraction of a shape beneath another one
MIN_CONTRAST = 110.0  # Euclidean distance in RGB
SUPERSAMPLING = 4
# As with real objects, colour and texture only hint at the class, and the outline determines it.
# Most shapes have the texture and the hue (in turns of the colour circle) of their class.
TEXTURES = ('dots', 'checks', 'stripes', 'solid', 'gradient')
HUES, HUE_SPREAD = (0.0, 0.2, 0.4, 0.6, 0.8), 0.07
TYPICAL = 0.85  # fraction of the shapes with the texture and hue of their class


class Instance(NamedTuple):
    """Shape in an image."""

    label: int  # 1..5, an index into SEG_CLASSES
    mask: np.ndarray  # [H, W] bool, the visible part


class Sample(NamedTuple):
    """Image and its labels."""

    image: np.ndarray  # [H, W, 3] uint8 RGB
    semantic: np.ndarray  # [H, W] uint8 indices into SEG_CLASSES
    instances: List[Instance]  # from bottom to top; their masks do not overlap


def draw_image(rng: np.random.Generator, image_size: int) -> Sample:
    """Draw a square image of one to four shapes.

    Args:
        rng: the only source of randomness: the same state gives the same image.
        image_size: side in pixels, at least 32.

    Raises:
        ValueError: ``image_size`` is not an integer of at least 32.

    Example:
        >>> sample = draw_image(np.random.default_rng(0), 64)
        >>> sample.image.shape, sample.semantic.dtype
        ((64, 64, 3), dtype('uint8'))
        >>> 1 <= len(sample.instances) <= 4
        True
    """
    size = check_integer('image_size', image_size, MIN_IMAGE_SIZE)
    canvas = _background(rng, size)
    top = np.zeros((size, size), np.uint8)  # number of the topmost shape, 0 for none
    labels, areas = [0], [0]
    wanted = int(rng.integers(MIN_SHAPES, MAX_SHAPES + 1))
    for _ in range(10 * wanted):
        label = int(rng.integers(1, len(SEG_CLASSES)))
        diameter = size * rng.uniform(MIN_DIAMETER, MAX_DIAMETER)
        coverage = _coverage(rng, size, label, diameter)
        mask = coverage >= 0.5
        visible = np.bincount(top[~mask], minlength=len(labels))
        if np.any(visible[1:] < MIN_VISIBLE * np.array(areas[1:])):
            continue
        style = label - 1 if rng.random() < TYPICAL else int(rng.integers(len(CLASSES)))
        around = cv2.dilate(mask.astype(np.uint8), np.ones((5, 5), np.uint8)) > 0
        texture = _texture(rng, size, diameter, style, canvas[around])
        canvas += coverage[..., None] * (texture - canvas)
        top[mask] = len(labels)
        labels.append(label)
        areas.append(int(mask.sum()))
        if len(labels) > wanted:
            break
    return Sample(
        image=np.clip(np.rint(canvas), 0, 255).astype(np.uint8),
        semantic=np.array(labels, np.uint8)[top],
        instances=[Instance(labels[i], top == i) for i in range(1, len(labels))],
    )


def _background(rng: np.random.Generator, size: int) -> np.ndarray:
    """Draw gradient, smooth noise, sometimes soft stripes, and grain: (S, S, 3) float32."""
    u, v = _axes(rng, size)
    ramp = (u - u.min()) / (u.max() - u.min())
    canvas = rng.uniform(50, 205, 3) + ramp[..., None] * rng.uniform(-60, 60, 3)
    cells = int(rng.integers(3, 9))
    clouds = rng.normal(0, 14, (cells, cells, 3)).astype(np.float32)
    canvas += cv2.resize(clouds, (size, size), interpolation=cv2.INTER_CUBIC)
    if rng.random() < 0.4:
        waves = np.sin(v * 2 * np.pi / (size * rng.uniform(0.08, 0.3)))
        canvas += waves[..., None] * rng.uniform(-12, 12, 3)
    canvas += rng.normal(0, 3, canvas.shape)
    return np.clip(canvas, 0, 255).astype(np.float32)


def _axes(rng: np.random.Generator, size: int) -> Tuple[np.ndarray, np.ndarray]:
    """Return two orthogonal (S, S) coordinates in pixels, rotated and shifted at random."""
    angle, shift = rng.uniform(0, 2 * np.pi), rng.uniform(0, size, 2)
    y, x = np.mgrid[:size, :size].astype(np.float32)
    return (
        np.cos(angle) * x + np.sin(angle) * y + shift[0],
        np.cos(angle) * y - np.sin(angle) * x + shift[1],
    )


def _coverage(rng: np.random.Generator, size: int, label: int, diameter: float) -> np.ndarray:
    """Return the fraction of each pixel, (S, S) float32, that a shape at a random place covers."""
    radius = diameter / 2
    angle = rng.uniform(0, 2 * np.pi)
    # Near the border a shape may be cut slightly, but stays recognisable.
    center = rng.uniform(0.8 * radius, size - 0.8 * radius, 2)
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    return covered_area(OUTLINES[label - 1] @ turn * radius + center, size) / np.float32(255)


def covered_area(corners: np.ndarray, size: int) -> np.ndarray:
    """Return how much of each pixel a polygon with corners (N, 2) covers, (S, S) uint8 of 255."""
    fine = np.zeros((size * SUPERSAMPLING,) * 2, np.uint8)
    cv2.fillPoly(fine, [np.rint(corners * SUPERSAMPLING).astype(np.int32)], 255)
    return cv2.resize(fine, (size, size), interpolation=cv2.INTER_AREA)


def _texture(
    rng: np.random.Generator, size: int, diameter: float, style: int, beneath: np.ndarray
) -> np.ndarray:
    """Draw a texture (S, S, 3) of a class in contrast to the pixels beneath (N, 3)."""
    u, v = _axes(rng, size)
    period = max(4.0, diameter * rng.uniform(0.2, 0.4))
    kind, colors = TEXTURES[style], _contrasting_colors(rng, beneath, HUES[style])
    if kind == 'solid':
        blend = np.zeros_like(u)
    elif kind == 'stripes':
        blend = u % period < period / 2
    elif kind == 'checks':
        blend = (u % period < period / 2) ^ (v % period < period / 2)
    elif kind == 'dots':
        blend = np.hypot(u % period - period / 2, v % period - period / 2) < 0.32 * period
    else:
        blend = 0.5 + 0.5 * np.sin(u * np.pi / diameter)
    texture = colors[0] + blend[..., None] * (colors[1] - colors[0])
    return (texture + rng.normal(0, rng.uniform(2, 8), texture.shape)).astype(np.float32)


def _contrasting_colors(rng: np.random.Generator, beneath: np.ndarray, hue: float) -> np.ndarray:
    """Choose two colours of a hue, (2, 3), that contrast with nearly all pixels beneath."""
    beneath = beneath[:: max(1, len(beneath) // 128)]

    def contrast(colors: np.ndarray) -> np.ndarray:
        distances = np.linalg.norm(colors[:, None] - beneath[None], axis=2)
        # Capped so that the first sufficient colour is chosen, not the most extreme one.
        return np.minimum(np.quantile(distances, 0.1, axis=1), MIN_CONTRAST)

    candidates = _colors_of_hue(rng, hue, 32)
    best = int(contrast(candidates).argmax())
    first, others = candidates[best], np.delete(candidates, best, axis=0)
    # A gradient also shows the colours in between, so the mean must contrast, too.
    second = others[(contrast(others) + contrast((others + first) / 2)).argmax()]
    return np.stack([first, second])


def _colors_of_hue(rng: np.random.Generator, hue: float, count: int) -> np.ndarray:
    """Draw bright and dark, vivid and pale colours around a hue: (count, 3) float32 RGB."""
    turns = (hue + rng.uniform(-HUE_SPREAD, HUE_SPREAD, count)) % 1.0
    saturation, value = rng.uniform(0.5, 1, count), rng.uniform(0.35, 1, count)
    hsv = np.stack([360 * turns, saturation, value], axis=-1).astype(np.float32)
    return 255 * cv2.cvtColor(hsv[None], cv2.COLOR_HSV2RGB)[0]


def _polygon(radii: List[float]) -> np.ndarray:
    """Return corners (N, 2) at these distances from the centre, at equal angles."""
    angles = np.arange(len(radii)) * 2 * np.pi / len(radii)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1) * np.array(radii)[:, None]


CROSS = [
    (3, 1), (1, 1), (1, 3), (-1, 3), (-1, 1), (-3, 1),
    (-3, -1), (-1, -1), (-1, -3), (1, -3), (1, -1), (3, -1),
]  # fmt: skip
# One outline per class, inside the unit circle.
OUTLINES = (
    _polygon([1] * 48),
    _polygon([1] * 4),
    _polygon([1] * 3),
    _polygon([1, 0.42] * 5),
    np.array(CROSS) / np.sqrt(10),
)
