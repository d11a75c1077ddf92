"""Clips of a shape on a circular path, whose classes only the order of the frames tells."""

import cv2
import numpy as np

from ...utils import check_integer
from ..shapes.draw import OUTLINES, covered_area

CLASSES = (
    'clockwise', 'anticlockwise', 'clockwise then anticlockwise', 'anticlockwise then clockwise',
)  # fmt: skip
TURNS = ((1, 1), (-1, -1), (1, -1), (-1, 1))  # direction of the first and of the second round
MIN_SIZE = 32
DIAMETER, RADIUS, SHIFT = (0.24, 0.34), (0.24, 0.32), 0.06  # relative to the side of a frame
START, SPREAD = -np.pi / 2, np.pi / 4  # angle of the first place: near the top


def draw_clip(rng: np.random.Generator, label: int, size: int, num_frames: int) -> np.ndarray:
    """Draw a clip of a shape that goes twice around the centre, by quarter turns.

    Both rounds take the same four places, in the order that the class says. So the frames of a
    clip, taken one by one or in any order, have the same distribution in every class.

    Args:
        rng: the only source of randomness.
        label: index into :data:`CLASSES`.
        size: side of the square frames in pixels, at least 32.
        num_frames: frames, a multiple of 8: two rounds of four places.

    Returns:
        (num_frames, size, size, 3) uint8 RGB.

    Raises:
        ValueError: a size is out of range.

    Example:
        >>> draw_clip(np.random.default_rng(0), 2, 32, 16).shape
        (16, 32, 32, 3)
    """
    check_integer('size', size, MIN_SIZE)
    if check_integer('num_frames', num_frames, 8) % 8:
        raise ValueError(f'num_frames must be a multiple of 8, got {num_frames}')
    background, colour = _background(rng, size), rng.uniform(170, 255, 3)
    outline = OUTLINES[int(rng.integers(len(OUTLINES)))] * size * rng.uniform(*DIAMETER) / 2
    centre = size / 2 + rng.uniform(-SHIFT, SHIFT, 2) * size
    radius, phase = size * rng.uniform(*RADIUS), START + rng.uniform(-SPREAD, SPREAD)
    # Rows grow downwards, so growing angles turn clockwise.
    quarters = np.concatenate([turn * np.arange(4) for turn in TURNS[label]])
    angles = phase + np.repeat(quarters, num_frames // 8) * np.pi / 2
    frames = np.empty((num_frames, size, size, 3), np.uint8)
    for frame, angle in zip(frames, angles):
        place = centre + radius * np.array([np.cos(angle), np.sin(angle)])
        cover = covered_area(outline + place, size)[..., None] / 255
        noise = rng.normal(0, 2, background.shape)
        frame[:] = np.clip(background + cover * (colour - background) + noise, 0, 255)
    return frames


def _background(rng: np.random.Generator, size: int) -> np.ndarray:
    """Draw a smooth background, darker than the shapes, (size, size, 3) float."""
    cells = rng.normal(0, 15, (4, 4, 3)) + rng.uniform(30, 110, 3)
    return cv2.resize(cells, (size, size), interpolation=cv2.INTER_CUBIC)
