"""Figures of what a ViT's patch embedding has learnt: filters and positions.

Figure 7 of "An Image is Worth 16x16 Words" (Dosovitskiy et al., ICLR 2021) shows both.
"""

import math
from pathlib import Path
from typing import Tuple, Union

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from ..models.backbones.vit_patch_embed import ViTPatchEmbed
from .files import save_figure


def principal_filters(weight: Tensor, count: int = 28) -> Tensor:
    """Return the principal components of the filters of a patch embedding.

    Args:
        weight: filters (D, C, h, w) of a convolution.
        count: number of components, at most D and at most C * h * w.

    Returns:
        (count, C, h, w) float64 unit vectors by falling variance of the filters along them. Their
        sign, which is arbitrary, makes the value of largest size positive.

    Raises:
        ValueError: ``weight`` does not have four dimensions, or ``count`` is out of range.

    Example:
        >>> principal_filters(torch.randn(192, 3, 16, 16), 5).shape
        torch.Size([5, 3, 16, 16])
    """
    if weight.dim() != 4:
        raise ValueError(f'weight must have shape (D, C, h, w), got {tuple(weight.shape)}')
    filters = weight.detach().cpu().double().flatten(1)
    if not 1 <= count <= min(filters.shape):
        raise ValueError(f'count must be in 1..{min(filters.shape)}, got {count}')
    components = torch.linalg.svd(filters - filters.mean(0), full_matrices=False).Vh[:count]
    largest = components.gather(1, components.abs().argmax(1, keepdim=True))
    return (components * largest.sign()).unflatten(1, weight.shape[1:])


def position_similarity(positions: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
    """Return the cosine similarity of the position embeddings of all pairs of patches.

    Args:
        positions: embeddings (H * W, C), row-major, without those of extra tokens.
        hw_shape: (H, W) of the map.

    Returns:
        (H, W, H, W) float64 in -1..1: row and column of one patch, then of the other.

    Raises:
        ValueError: ``positions`` does not have shape (H * W, C).

    Example:
        >>> position_similarity(torch.randn(6, 8), (2, 3))[1, 2, 1, 2].item().__round__(6)
        1.0
    """
    if positions.dim() != 2 or positions.shape[0] != math.prod(hw_shape):
        raise ValueError(
            f'positions must have shape ({math.prod(hw_shape)}, C) for a map of {tuple(hw_shape)}, '
            f'got {tuple(positions.shape)}'
        )
    unit = nn.functional.normalize(positions.detach().cpu().double(), dim=1)
    return (unit @ unit.T).reshape(*hw_shape, *hw_shape)


def tile(images: np.ndarray, fill: float) -> np.ndarray:
    """Join images (R, S, h, w, ...) to one of R rows and S columns, with a line between them.

    Args:
        images: R x S images.
        fill: value of the lines, one pixel wide.

    Example:
        >>> tile(np.ones((2, 3, 4, 5)), 0.0).shape
        (9, 17)
    """
    padding = [(0, 0), (0, 0), (0, 1), (0, 1)] + [(0, 0)] * (images.ndim - 4)
    padded = np.pad(images, padding, constant_values=fill)
    joined = np.concatenate(np.concatenate(padded, 1), 1)
    return joined[:-1, :-1]


def filter_colors(filters: Tensor) -> np.ndarray:
    """Return filters (n, C, h, w) as pictures (n, h, w, 3), each stretched to 0..1.

    Three channels are red, green and blue; others are drawn as their mean, in grey.
    """
    if filters.shape[1] != 3:
        filters = filters.mean(1, keepdim=True).expand(-1, 3, -1, -1)
    low, high = filters.amin((1, 2, 3), True), filters.amax((1, 2, 3), True)
    return ((filters - low) / (high - low).clamp(min=1e-12)).permute(0, 2, 3, 1).numpy()


def draw_patch_embedding(
    path: Union[str, Path], embed: nn.Module, count: int = 28, columns: int = 7
) -> Path:
    """Draw the filters' principal components and the positions' similarity; return the path.

    The picture of positions has a panel for each patch, at its place in the map: the similarity
    with all patches. A model without positions has the picture of filters alone.

    Args:
        path: file to write, in a format that matplotlib supports.
        embed: patch embedding of a ViT, whose filters are for RGB images.
        count: number of components, see :func:`principal_filters`.
        columns: components in a row.

    Raises:
        TypeError: ``embed`` is not the patch embedding of a ViT.
        ValueError: ``count`` is out of range, or ``columns`` is not positive.
    """
    if not isinstance(embed, ViTPatchEmbed):
        raise TypeError(f'embed must be the ViTPatchEmbed of a ViT, got {type(embed).__name__}')
    if columns < 1:
        raise ValueError(f'columns must be positive, got {columns}')
    pictures = filter_colors(principal_filters(embed.proj.weight, count))
    blank = np.ones((-count % columns, *pictures.shape[1:]))
    grid = np.concatenate([pictures, blank]).reshape(-1, columns, *pictures.shape[1:])
    with_positions = embed.pos_embed is not None
    figure = Figure(figsize=(4.6 * (1 + with_positions), 4.6), dpi=150)
    axes = figure.subplots(1, 1 + with_positions, squeeze=False)[0]
    for ax in axes:
        ax.set_axis_off()
    axes[0].imshow(tile(grid, 1.0), interpolation='nearest')
    axes[0].set_title(f'filters: first {count} principal components', fontsize=9)
    if embed.pos_embed is not None and embed.grid is not None:
        positions = embed.pos_embed[0, embed.num_extra_positions :]
        similarity = position_similarity(positions, embed.grid).numpy()
        drawn = axes[1].imshow(
            tile(similarity, float('nan')), vmin=-1, vmax=1, interpolation='nearest'
        )
        axes[1].set_title('positions: cosine similarity', fontsize=9)
        figure.colorbar(drawn, ax=axes[1], fraction=0.046, pad=0.03)
    figure.tight_layout(pad=0.5)
    return save_figure(figure, path)
