"""Perceptual loss on features of VGG-16."""

from typing import Iterator

import torch
import torch.nn.functional as F
from mmengine.model import BaseModule
from mmengine.registry import MODELS
from torch import Tensor

from ...checkpoints import load_state_dict
from ...checkpoints.errors import CheckpointError

# Number of a convolution in torchvision's VGG-16 -> channels; a list for each resolution.
LAYERS = (
    {0: 64, 2: 64},
    {5: 128, 7: 128},
    {10: 256, 12: 256, 14: 256},
    {17: 512, 19: 512, 21: 512},
    {24: 512, 26: 512, 28: 512},
)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
VGG = 'https://download.pytorch.org/models/vgg16-397923af.pth'


@MODELS.register_module()
class VGGPerceptualLoss(BaseModule):
    """LPIPS (Zhang et al., CVPR 2018) on VGG-16, with weight 1 for each channel.

    Features after the last activation of each resolution are normalised over the channels. The
    squared difference is averaged over the map and summed over channels and resolutions.
    The weights of the network are neither parameters nor saved in checkpoints.
    :meth:`init_weights`, which a training calls, reads them; nothing is downloaded.

    Args:
        weights: file with the weights of torchvision's VGG-16, from
            https://download.pytorch.org/models/vgg16-397923af.pth.

    Raises:
        FileNotFoundError: the file does not exist.
        mmlinattn.checkpoints.CheckpointError: the file does not hold the weights of VGG-16.
        RuntimeError: the loss is computed before ``init_weights``.

    Example:
        >>> loss = VGGPerceptualLoss('checkpoints/vgg16-397923af.pth')
        >>> len(list(loss.parameters())), len(loss.state_dict())
        (0, 0)
    """

    def __init__(self, weights: str) -> None:
        super().__init__()
        self.weights, self.is_loaded = weights, False
        channels = 3
        for number, width in ((n, w) for layers in LAYERS for n, w in layers.items()):
            self._add(f'weight_{number}', torch.zeros(width, channels, 3, 3))
            self._add(f'bias_{number}', torch.zeros(width))
            channels = width
        self._add('mean', torch.tensor(MEAN).view(1, 3, 1, 1))
        self._add('std', torch.tensor(STD).view(1, 3, 1, 1))

    def _add(self, name: str, value: Tensor) -> None:
        self.register_buffer(name, value, persistent=False)

    def forward(self, reconstruction: Tensor, image: Tensor) -> Tensor:
        """Return the mean loss of images (B, 3, H, W) in [0, 1], a scalar."""
        if not self.is_loaded:
            raise RuntimeError('VGGPerceptualLoss has no weights: call init_weights() of the model')
        total = reconstruction.new_zeros(())
        for x, y in zip(self.features(reconstruction), self.features(image)):
            total = total + (_unit(x) - _unit(y)).square().sum(1).mean()
        return total

    def features(self, x: Tensor) -> Iterator[Tensor]:
        """Yield the features (B, C_i, H / 2^i, W / 2^i) of images (B, 3, H, W) in [0, 1]."""
        x = (x - self.mean) / self.std
        for i, layers in enumerate(LAYERS):
            x = F.max_pool2d(x, 2) if i else x
            for number in layers:
                weight, bias = getattr(self, f'weight_{number}'), getattr(self, f'bias_{number}')
                x = F.relu(F.conv2d(x, weight, bias, padding=1))
            yield x

    def init_weights(self) -> None:
        """Read the weights from their file."""
        try:
            found = load_state_dict(self.weights)[0]
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f'model.perceptual.weights: {self.weights!r} does not exist; torchvision has it at '
                f'{VGG}. Name another file with --cfg-options model.perceptual.weights=FILE, or '
                'train without the perceptual loss: --cfg-options model.perceptual=None'
            ) from error
        for number in (n for layers in LAYERS for n in layers):
            for kind in ('weight', 'bias'):
                name, target = f'features.{number}.{kind}', getattr(self, f'{kind}_{number}')
                value = found.get(name)
                if value is None or value.shape != target.shape:
                    has = 'is missing' if value is None else f'has shape {tuple(value.shape)}'
                    raise CheckpointError(
                        f'{self.weights}: {name} {has}, {tuple(target.shape)} is needed: not the '
                        'file that VGGPerceptualLoss names'
                    )
                target.copy_(value)
        self.is_loaded = True


def _unit(x: Tensor) -> Tensor:
    x = x.float()
    # Not sqrt(0), which has no gradient.
    return x / (x.square().sum(1, keepdim=True) + 1e-20).sqrt()
