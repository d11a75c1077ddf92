"""Mapping between the cells of a feature map and the pixels of an image."""

from dataclasses import dataclass
from typing import Optional, Tuple

import numpy as np

from ..apis import Predictor

Pair = Tuple[float, float]


@dataclass(frozen=True)
class Grid:
    """Cells of a feature map over an image: ``cell = scale * pixel + offset``, for x and for y.

    Attributes:
        shape: (rows, columns).
        scale, offset: pairs for x and y.

    Example:
        >>> grid = Grid((2, 4), (0.25, 0.25), (-0.375, -0.375))  # 16 x 8 pixels, 4 a cell
        >>> grid.cell(7, 4), grid.middle(1, 1)
        ((1, 1), (5.5, 5.5))
    """

    shape: Tuple[int, int]
    scale: Pair
    offset: Pair

    def cell(self, x: float, y: float) -> Tuple[int, int]:
        """Return (row, column) of the cell nearest to a pixel."""
        column, row = (
            min(max(int(np.floor(scale * pixel + offset + 0.5)), 0), cells - 1)
            for pixel, scale, offset, cells in zip(
                (x, y), self.scale, self.offset, self.shape[::-1]
            )
        )
        return row, column

    def middle(self, row: float, column: float) -> Pair:
        """Return the centre (x, y) of a cell in pixels."""
        x, y = (
            (cell - offset) / scale
            for cell, scale, offset in zip((column, row), self.scale, self.offset)
        )
        return x, y

    def paint(self, picture: np.ndarray, colors: np.ndarray) -> np.ndarray:
        """Return the image in pale grey, overlaid with the colours of the cells.

        Args:
            picture: (H, W, 3) uint8.
            colors: (rows, columns, 4), RGBA in 0..1.

        Returns:
            (H, W, 3) uint8; pixels without a cell, such as those outside a crop, stay grey.
        """
        (columns, no_column), (rows, no_row) = (
            self._cells(size, axis) for axis, size in ((0, picture.shape[1]), (1, picture.shape[0]))
        )
        over = colors[rows[:, None], columns]
        alpha = np.where(no_row[:, None] | no_column, 0, over[..., 3])[..., None]
        grey = picture.mean(-1, keepdims=True) * 0.35 + 0.65 * 255
        return (grey * (1 - alpha) + 255 * over[..., :3] * alpha).round().astype(np.uint8)

    def _cells(self, size: int, axis: int) -> Tuple[np.ndarray, np.ndarray]:
        """Return the cell of each pixel along an axis, and a mask of the pixels without a cell."""
        cells = np.floor(self.scale[axis] * np.arange(size) + self.offset[axis] + 0.5).astype(int)
        kept = cells.clip(0, self.shape[1 - axis] - 1)
        return kept, kept != cells


@dataclass(frozen=True)
class CropTransform:
    """Transform from the network's input to the image: ``pixel = scale * input + offset``.

    Attributes:
        scale, offset: pairs for x and y.
        size: (height, width) of the network's input, including padding.
    """

    scale: Pair
    offset: Pair
    size: Tuple[int, int]

    def enlarged(self, factor: int) -> 'CropTransform':
        """Return the transform for the image enlarged by ``factor``."""
        (sx, sy), (ox, oy) = self.scale, self.offset
        offset = (enlarged_pixel(ox, factor), enlarged_pixel(oy, factor))
        return CropTransform((factor * sx, factor * sy), offset, self.size)

    def grid(self, shape: Tuple[int, int], stride: Optional[float] = None) -> Grid:
        """Return the grid of a map (rows, columns) that divides the input evenly.

        With ``stride``, the centres of the cells are at its multiples, as in SMCA.
        """
        scales, offsets = [], []
        for cells, pixels, scale, offset in zip(
            shape[::-1], self.size[::-1], self.scale, self.offset
        ):
            step = pixels / cells if stride is None else stride
            start = 0.5 / step - 0.5 if stride is None else 0.0
            scales.append(1 / (step * scale))
            offsets.append(start - offset / (step * scale))
        return Grid(shape, (scales[0], scales[1]), (offsets[0], offsets[1]))


def enlarged_pixel(pixel: float, factor: int) -> float:
    """Return the centre of a pixel in the image enlarged by ``factor``.

    Example:
        >>> enlarged_pixel(1, 4)  # the pixels 4, 5, 6 and 7
        5.5
    """
    return factor * (pixel + 0.5) - 0.5


def measure_crop(
    predictor: Predictor, shape: Tuple[int, int], size: Tuple[int, int]
) -> CropTransform:
    """Measure the transform from the network's input to the image.

    The test pipeline receives coordinates as colours, so any resizing, padding and cropping is
    covered.

    Args:
        predictor: predictor with the pipeline.
        shape: (height, width) of the image.
        size: (height, width) of the network's input.

    Raises:
        ValueError: the pipeline changes colours, or leaves fewer than 2 x 2 pixels.
    """
    height, width = shape
    ramps = np.full((height, width, 3), 255, np.uint8)
    ramps[..., 0] = np.linspace(0, 255, width).round()
    ramps[..., 1] = np.linspace(0, 255, height).round()[:, None]
    inputs = predictor.batch_of(ramps)['inputs'][0].numpy()
    inside = inputs[2] > 254
    scales, offsets = [], []
    for axis, pixels in ((0, width), (1, height)):
        counts = inside.sum(axis)
        values = (inputs[axis] * inside).sum(axis) / counts.clip(1)
        # Resizing repeats the outermost pixels, so their coordinates are wrong.
        known = (counts > 0) & (values > 0.5) & (values < 254.5)
        if known.sum() < 2:
            raise ValueError(
                f'the test pipeline leaves too little of a picture of {width} x {height} pixels, '
                'or changes its colours: which pixels a cell is of is not known'
            )
        scale, offset = np.polyfit(known.nonzero()[0], values[known] / 255 * (pixels - 1), 1)
        scales.append(float(scale))
        offsets.append(float(offset))
    return CropTransform((scales[0], scales[1]), (offsets[0], offsets[1]), size)
