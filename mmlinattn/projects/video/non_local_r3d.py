"""3D ResNet-18 of torchvision with non-local blocks."""

from typing import Optional, Sequence, Tuple, Union

from mmengine.model import BaseModule
from mmengine.registry import MODELS
from torch import Tensor, nn

from .non_local import NonLocalBlock

CHANNELS = (64, 128, 256, 512)


@MODELS.register_module()
class NonLocalR3D(BaseModule):
    """3D ResNet-18 with non-local blocks, "Non-local Neural Networks" (Wang et al., CVPR 2018).

    The network is ``torchvision.models.video.r3d_18`` with its names of weights, those of
    ``non_local.*`` aside. A new block changes nothing, so pre-trained weights keep their results.

    Args:
        non_local: options of the :class:`NonLocalBlock`, such as ``dict(mode='dot_product')``.
        stages: stages, 0 to 3, with a block after them; the paper's third and fourth by default.
        depths: residual blocks of each stage.
        out_indices: stages to return; stages after the last of them are not built.
        init_cfg: MMEngine initialisation.

    Inputs:
        (B, 3, T, H, W).

    Returns:
        map (B, C_i, T_i, H_i, W_i), or a tuple of maps with several ``out_indices``.

    Raises:
        ValueError: a stage is out of range; errors of :class:`NonLocalBlock`.

    Example:
        >>> import torch
        >>> model = NonLocalR3D(stages=(0, 1), out_indices=(1,), depths=(1, 1, 1, 1)).eval()
        >>> model(torch.randn(1, 3, 8, 32, 32)).shape
        torch.Size([1, 128, 4, 8, 8])
    """

    def __init__(
        self,
        non_local: Optional[dict] = None,
        stages: Sequence[int] = (1, 2),
        depths: Sequence[int] = (2, 2, 2, 2),
        out_indices: Sequence[int] = (3,),
        init_cfg: Optional[dict] = None,
    ) -> None:
        super().__init__(init_cfg)
        # torchvision is no requirement of this package, but of the frameworks.
        from torchvision.models.video.resnet import BasicBlock, BasicStem, Conv3DSimple, VideoResNet

        if len(depths) != 4:
            raise ValueError(f'depths must have 4 values, got {depths}')
        for name, value in dict(stages=stages, out_indices=out_indices).items():
            if any(i not in range(4) for i in value):
                raise ValueError(f'{name} must be in 0..3, got {value}')
        if not out_indices:
            raise ValueError('out_indices must name a stage, got none')
        self.out_indices = tuple(out_indices)
        whole = VideoResNet(BasicBlock, [Conv3DSimple] * 4, list(depths), BasicStem)
        self.stem = whole.stem
        for i in range(max(out_indices) + 1):
            setattr(self, f'layer{i + 1}', getattr(whole, f'layer{i + 1}'))
        self.non_local = nn.ModuleDict()
        for i in stages:
            if i <= max(out_indices):
                block = NonLocalBlock(CHANNELS[i], dims=3, **(non_local or {}))
                self.non_local[str(i)] = block

    def forward(self, clip: Tensor) -> Union[Tensor, Tuple[Tensor, ...]]:
        x, outs = self.stem(clip), []
        for i in range(max(self.out_indices) + 1):
            x = getattr(self, f'layer{i + 1}')(x)
            if str(i) in self.non_local:
                x = self.non_local[str(i)](x)
            if i in self.out_indices:
                outs.append(x)
        return outs[0] if len(outs) == 1 else tuple(outs)
