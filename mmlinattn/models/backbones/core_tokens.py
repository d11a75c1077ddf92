"""Cores that a plain ViT carries from layer to layer, with coordinates that move."""

from typing import Any, List, Tuple

import torch
from mmengine.model import BaseModule, ModuleList
from torch import Tensor, nn

from ..layers import CoreAttention
from ..layers.core import load_first_cores, map_coordinates, new_coordinates, new_cores
from ..layers.token_layout import HwShape, split_images


class CoreMove(nn.Linear):
    """Step of the coordinates of cores, ``alpha linear(cores)``, before a layer."""

    def __init__(self, embed_dims: int) -> None:
        super().__init__(embed_dims, 2)
        self.alpha = nn.Parameter(torch.tensor(0.01))

    def forward(self, cores: Tensor) -> Tensor:
        """Return the step (B, M, 2) of cores (B, M, C)."""
        return self.alpha * super().forward(cores)


class CoreTokens(BaseModule):
    """Cores of :class:`CoreAttention` in a ViT, "VECA" (Song et al., arXiv 2605.12491, 2026).

    The class token and the registers are the first cores, new tokens after them the others. All
    are tokens of every layer. Their coordinates are ``tanh(r)``: r is learnt, starts as farthest
    points of the square, and moves before each layer but the first, by the cores of each image::

        r = r + alpha_l linear_l(cores)

    In training the coordinates of all map tokens are shifted and scaled, once for a batch. With
    ``nested``, the number of cores is drawn as well.

    Args:
        attn: the attention of a layer, with the number of cores.
        num_extra_tokens: number of class token and registers.
        num_layers: number of layers.

    Raises:
        ValueError: ``num_cores`` is not above ``num_extra_tokens``.
    """

    def __init__(self, attn: CoreAttention, num_extra_tokens: int, num_layers: int) -> None:
        super().__init__()
        self.count, self.num_first = attn.num_carried_cores, num_extra_tokens
        if self.count <= num_extra_tokens:
            raise ValueError(
                f'num_cores must be above {num_extra_tokens}, the number of class token and '
                f'registers, which are the first cores; got {self.count}'
            )
        self.augmentation, self.nested = attn.coordinates, attn.nested
        self.tokens = new_cores(self.count - num_extra_tokens, attn.embed_dims)
        self.coords = new_coordinates(self.count)  # before their tanh
        self.moves = ModuleList(CoreMove(attn.embed_dims) for _ in range(num_layers - 1))
        load_first_cores(self, 'tokens', 'coords')

    def start(self, x: Tensor, hw_shape: HwShape, count: int) -> Tuple[Tensor, Tensor, Tensor]:
        """Add the first ``count`` = M cores to tokens (B, E + N, C) of images, or to packed ones.

        Returns:
            tokens (B, M + N, C); coordinates of cores (B, M, 2) before their tanh; and coordinates
            of map tokens (1, N, 2). Of packed images (1, T, C), (images, M, 2), (1, T - M, 2).
        """
        first, batch = self.num_first, x.shape[0]
        new = self.tokens[:, : count - first].expand(batch, -1, -1).to(x.dtype)
        augment = self.augmentation.draw(x.device) if self.training else None
        images = split_images(x, hw_shape, first)
        tokens = [torch.cat([part[:, :first], new, part[:, first:]], 1) for part, _ in images]
        maps = [map_coordinates(hw, self.coords, None, augment) for _, hw in images]
        raw = self.coords[:, :count].expand(batch * len(images), -1, -1)
        return torch.cat(tokens, 1), raw, torch.cat(maps, 1)

    def layer_parts(self, layer: int) -> List[Any]:
        """Return what layer ``layer`` needs: new cores and coordinates, or their step."""
        return [self.moves[layer - 1]] if layer else [self.tokens, self.coords]

    def draw_count(self) -> int:
        """Return the number of cores to use: random in nested training, more often large."""
        if not (self.training and self.nested):
            return self.count
        counts = [k for k in range(0, self.count + 1, self.nested) if k > self.num_first]
        weights = torch.arange(len(counts), device='cpu') // 2 + 1.0  # as released
        return counts[int(torch.multinomial(weights, 1))]

    def move(self, layer: int, raw: Tensor, x: Tensor, hw_shape: HwShape, count: int) -> Tensor:
        """Return the coordinates (B, M, 2) before their tanh for a layer, from its input x."""
        if not layer:
            return raw
        cores = [part[:, :count] for part, _ in split_images(x, hw_shape, count)]
        return raw + self.moves[layer - 1](torch.cat(cores))
