"""Discriminator of StyleGAN2."""

import math
from typing import Sequence, Union

import torch
import torch.nn.functional as F
from mmengine.model import BaseModule
from mmengine.registry import MODELS
from torch import Tensor, nn

from ...ops.common.checks import check_sides
from ...ops.common.numerics import constant
from ...utils import check_integer
from ...utils.errors import InputError

# Leaky ReLU halves the variance of its input; StyleGAN2 multiplies by this after each.
GAIN = math.sqrt(2)
BLUR = (1.0, 3.0, 3.0, 1.0)
LAST_SIDE = 4


class EqualizedConv(nn.Conv2d):
    """Convolution with weights of unit variance, scaled in the forward pass (equalised rate).

    ``activate`` adds leaky ReLU and gain after it, ``blur`` a low-pass filter and stride 2 before.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        activate: bool = True,
        blur: bool = False,
        bias: bool = True,
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, bias=bias)
        self.activate, self.scale = activate, 1 / math.sqrt(in_channels * kernel_size**2)
        # The filter has an even size: with this padding the output has half the side.
        self.around = (len(BLUR) - 2 + kernel_size - 1) // 2
        self.blur = blur

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Convolve (B, in_channels, H, W), to half the size with ``blur``."""
        padding, stride = self.kernel_size[0] // 2, 1
        if self.blur:
            kernel = constant(_blur_kernel, x.device).to(x.dtype).expand(x.shape[1], 1, -1, -1)
            x = F.conv2d(x, kernel, padding=self.around, groups=x.shape[1])
            padding, stride = 0, 2
        x = F.conv2d(x, self.weight * self.scale, self.bias, stride, padding)
        return F.leaky_relu(x, 0.2) * GAIN if self.activate else x


def _blur_kernel(device: torch.device) -> Tensor:
    kernel = torch.tensor(BLUR, device=device)
    return torch.outer(kernel, kernel) / kernel.sum() ** 2


class ResidualBlock(nn.Module):
    """Two convolutions to half the size, added to a 1x1 convolution of the input."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv1 = EqualizedConv(in_channels, in_channels, 3)
        self.conv2 = EqualizedConv(in_channels, out_channels, 3, blur=True)
        self.skip = EqualizedConv(
            in_channels, out_channels, 1, activate=False, blur=True, bias=False
        )

    def forward(self, x: Tensor) -> Tensor:
        return (self.conv2(self.conv1(x)) + self.skip(x)) / GAIN


@MODELS.register_module()
class StyleDiscriminator(BaseModule):
    """Residual discriminator of StyleGAN2 (Karras et al., CVPR 2020, figure 7), without the
    deviation over the batch: it rewards varied samples, and reconstructions are as varied as
    their images.

    Args:
        img_size: side, or (height, width), of the images: the shorter is 4 times a power of 2, 2^k,
            and the longer a multiple of 2^k.
        base_channels: channels of the first map; they double with each block.
        max_channels: largest number of channels.

    Raises:
        ValueError: ``img_size`` is none of these, or numbers of channels are no positive integers.
        mmlinattn.utils.errors.InputError: images have another size.

    Example:
        >>> model = StyleDiscriminator(img_size=32, base_channels=8, max_channels=16)
        >>> model(torch.rand(2, 3, 32, 32)).shape
        torch.Size([2])
    """

    def __init__(
        self,
        img_size: Union[int, Sequence[int]] = 256,
        base_channels: int = 64,
        max_channels: int = 512,
    ) -> None:
        super().__init__()
        self.img_size = check_sides(img_size, 'img_size')
        check_integer('base_channels', base_channels)
        check_integer('max_channels', max_channels)
        shortest = min(self.img_size)
        depth = int(math.log2(max(shortest // LAST_SIDE, 1)))
        if any(side % (2**depth) for side in self.img_size) or shortest != LAST_SIDE * 2**depth:
            raise ValueError(
                f'img_size of the discriminator must be 4 times a power of 2, and another side a '
                f'multiple of that power, got {img_size}'
            )
        widths = [min(base_channels * 2**i, max_channels) for i in range(depth + 1)]
        self.stem = EqualizedConv(3, widths[0], 1)
        self.blocks = nn.Sequential(*map(ResidualBlock, widths[:-1], widths[1:]))
        self.conv = EqualizedConv(widths[-1], widths[-1], 3)
        last = math.prod(side >> depth for side in self.img_size) * widths[-1]
        # Linear layers, as convolutions of one pixel.
        self.fc1 = EqualizedConv(last, widths[-1], 1)
        self.fc2 = EqualizedConv(widths[-1], 1, 1, activate=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (B,) of images (B, 3, H, W) in [0, 1]; high for real ones."""
        if tuple(x.shape[-2:]) != self.img_size:
            raise InputError(
                f'the discriminator is for images of {self.img_size}, got {tuple(x.shape[-2:])}: '
                'crop the images, or set model.discriminator.img_size'
            )
        x = self.conv(self.blocks(self.stem(2 * x - 1)))
        return self.fc2(self.fc1(x.flatten(1)[..., None, None])).flatten()
