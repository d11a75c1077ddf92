"""Graphs of the regions of a video."""

from functools import partial
from typing import Optional, Sequence, Tuple, Union

import torch
from mmengine.model import BaseModule
from mmengine.registry import MODELS
from torch import Tensor, nn

from ...ops.common.checks import check_sides
from ...ops.common.numerics import accumulation_dtype, masked_softmax
from ...utils import check_integer


@MODELS.register_module()
class RegionGraph(BaseModule):
    """Graph convolutions on the similarity graph of regions, "Videos as Space-Time Region Graphs"
    (Wang and Gupta, ECCV 2018)::

        G_ij = softmax_j(phi(x_i) . phi'(x_j))
        x <- x + ReLU(LayerNorm(G x W)), for each layer

    Args:
        channels: channels C of the regions.
        num_layers: graph convolutions, 1 to 3 in the paper.
        init_cfg: MMEngine initialisation.

    Inputs:
        features (B, R, C) of the regions of all frames, and optionally a mask (B, R) bool, True for
        regions that do not exist.

    Returns:
        (B, R, C); masked regions do not change the others.

    Raises:
        ValueError: ``num_layers`` is below 1; in the forward pass, the shape is another.

    Example:
        >>> RegionGraph(16)(torch.randn(2, 40, 16)).shape
        torch.Size([2, 40, 16])
    """

    def __init__(self, channels: int, num_layers: int = 3, init_cfg: Optional[dict] = None) -> None:
        super().__init__(init_cfg)
        count, linear = check_integer('num_layers', num_layers), partial(nn.Linear, bias=False)
        self.channels = channels
        self.query, self.key = linear(channels, channels), linear(channels, channels)
        self.layers = nn.ModuleList(linear(channels, channels) for _ in range(count))
        self.norms = nn.ModuleList(nn.LayerNorm(channels) for _ in range(count))

    def forward(self, regions: Tensor, mask: Optional[Tensor] = None) -> Tensor:
        if regions.dim() != 3 or regions.shape[-1] != self.channels:
            raise ValueError(
                f'regions must have shape (B, R, {self.channels}), got {tuple(regions.shape)}'
            )
        if mask is not None:
            regions = regions.masked_fill(mask[..., None], 0)  # NaN times weight 0 is NaN
        logits = self.query(regions) @ self.key(regions).mT
        logits = logits.to(accumulation_dtype(logits.dtype))
        graph = masked_softmax(logits, None if mask is None else mask[:, None]).to(regions.dtype)
        for layer, norm in zip(self.layers, self.norms):
            regions = regions + norm(layer(graph @ regions)).relu()
        return regions


@MODELS.register_module()
class RegionGraphNeck(BaseModule):
    """Neck that adds a graph of regions to the mean of a clip's map (Wang and Gupta, ECCV 2018).

    Features of regions are those of RoIAlign on each frame of the map, max-pooled, after a linear
    layer. The mean of all regions behind the graph and the mean of the map are concatenated.

    Args:
        in_channels: channels C of the map.
        out_channels: channels of the regions.
        num_layers: see :class:`RegionGraph`.
        grid: rows and columns of regions on each frame where no boxes are given; or one number.
        roi_size: side of the aligned region before pooling.
        init_cfg: MMEngine initialisation.

    Inputs:
        map (B, C, T, H, W), or a tuple of maps whose last is used; optionally boxes (B, T, R, 4) as
        (x1, y1, x2, y2) in 0..1 of the frame, and a mask (B, T, R) bool, True for no box.

    Returns:
        tuple of one (B, C + out_channels).

    Raises:
        ValueError: ``grid`` or ``roi_size`` is not positive; in the forward pass, a shape does not
            match.

    Example:
        >>> neck = RegionGraphNeck(16, 8)
        >>> neck(torch.randn(2, 16, 4, 7, 7))[0].shape
        torch.Size([2, 24])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int = 512,
        num_layers: int = 3,
        grid: Union[int, Sequence[int]] = (3, 3),
        roi_size: int = 7,
        init_cfg: Optional[dict] = None,
    ) -> None:
        super().__init__(init_cfg)
        self.in_channels, self.grid = in_channels, check_sides(grid, 'grid')
        self.roi_size = check_integer('roi_size', roi_size)
        self.reduce = nn.Linear(in_channels, out_channels)
        self.graph = RegionGraph(out_channels, num_layers)

    def forward(
        self,
        x: Union[Tensor, Sequence[Tensor]],
        boxes: Optional[Tensor] = None,
        mask: Optional[Tensor] = None,
    ) -> Tuple[Tensor]:
        x = x if isinstance(x, Tensor) else x[-1]
        if x.dim() != 5 or x.shape[1] != self.in_channels:
            raise ValueError(
                f'the map must have shape (B, {self.in_channels}, T, H, W), got {tuple(x.shape)}'
            )
        batch, _, frames = x.shape[:3]
        if boxes is None:
            boxes = self.grid_boxes(x).expand(batch, frames, -1, -1)
        if boxes.shape[:2] != (batch, frames) or boxes.shape[-1] != 4:
            raise ValueError(
                f'boxes must have shape (B, T, R, 4) with B={batch}, T={frames} of the map, got '
                f'{tuple(boxes.shape)}'
            )
        if mask is None:
            mask = torch.zeros_like(boxes[..., 0], dtype=torch.bool)
        if mask.dtype != torch.bool or mask.shape != boxes.shape[:3]:
            raise ValueError(
                f'mask must be bool of shape (B, T, R) = {tuple(boxes.shape[:3])}, got '
                f'{mask.dtype} {tuple(mask.shape)}'
            )
        hidden = mask.flatten(1)  # [B, T * R]
        boxes = boxes.masked_fill(mask[..., None], 0)  # they may be NaN
        regions = self.graph(self.reduce(self._features(x, boxes)), hidden)
        count = (~hidden).sum(1, keepdim=True).clamp(min=1)
        pooled = regions.masked_fill(hidden[..., None], 0).sum(1) / count
        return (torch.cat([x.mean((2, 3, 4)), pooled], 1),)

    def grid_boxes(self, x: Tensor) -> Tensor:
        """Return the boxes of the grid, (R, 4)."""
        rows, columns = self.grid
        y, x0 = torch.meshgrid(
            torch.arange(rows, device=x.device), torch.arange(columns, device=x.device),
            indexing='ij',
        )  # fmt: skip
        corner = torch.stack([x0 / columns, y / rows], -1).flatten(0, 1)
        return torch.cat([corner, corner + corner.new_tensor([1 / columns, 1 / rows])], -1)

    def _features(self, x: Tensor, boxes: Tensor) -> Tensor:
        """Return max-pooled features of RoIAlign, (B, T * R, C)."""
        # torchvision is no requirement of this package, but of the frameworks.
        from torchvision.ops import roi_align

        height, width = x.shape[-2:]
        images = x.transpose(1, 2).flatten(0, 1)
        size = boxes.new_tensor([width, height, width, height])
        dtype = accumulation_dtype(images.dtype)  # a CPU has no roi_align of bfloat16
        per_image, images = list((boxes * size).flatten(0, 1).to(dtype)), images.to(dtype)
        found = roi_align(images, per_image, self.roi_size, sampling_ratio=2, aligned=True)
        return found.amax((2, 3)).unflatten(0, (x.shape[0], -1)).to(x.dtype)
