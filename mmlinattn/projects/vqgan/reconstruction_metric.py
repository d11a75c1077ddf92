"""PSNR, SSIM and use of the codebook of reconstructed images."""

from typing import Any, Dict, List, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from mmengine.evaluator import BaseMetric
from mmengine.registry import METRICS
from torch import Tensor

from .reconstruction_losses import perplexity

# Wang et al. 2004: Gaussian window, and constants for a range of 255.
WINDOW, SIGMA = 11, 1.5
C1, C2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2


def psnr(image: Tensor, other: Tensor) -> float:
    """Return the peak signal-to-noise ratio of two 8-bit images in dB.

    Args:
        image, other: (3, H, W) uint8.

    Returns:
        ``20 log10(255 / rmse)``; infinite for equal images.

    Example:
        >>> image = torch.zeros(3, 8, 8, dtype=torch.uint8)
        >>> round(psnr(image, image + 10), 2)
        28.13
    """
    error = F.mse_loss(image.double(), other.double())
    return float(10 * torch.log10(255**2 / error))


def ssim(image: Tensor, other: Tensor) -> float:
    """Return the structural similarity of two 8-bit images (Wang et al. 2004).

    The window is a Gaussian of 11x11 pixels with a deviation of 1.5. The mean is over all channels
    and the pixels whose window lies inside the image.

    Args:
        image, other: (3, H, W) uint8, of at least 11x11 pixels.

    Raises:
        ValueError: the images are smaller.

    Example:
        >>> image = torch.arange(432, dtype=torch.uint8).view(3, 12, 12)
        >>> ssim(image, image)
        1.0
    """
    if min(image.shape[-2:]) < WINDOW:
        raise ValueError(
            f'SSIM needs images of at least {WINDOW}x{WINDOW}, got {tuple(image.shape[-2:])}'
        )
    x, y = (t.double()[:, None] for t in (image, other))  # [3, 1, H, W]
    offsets = torch.arange(WINDOW, dtype=x.dtype, device=x.device) - WINDOW // 2
    line = torch.exp(-(offsets**2) / (2 * SIGMA**2))
    window = torch.outer(line, line) / line.sum() ** 2

    def mean(t: Tensor) -> Tensor:
        return F.conv2d(t, window[None, None])

    mean_x, mean_y = mean(x), mean(y)
    var_x, var_y = mean(x * x) - mean_x**2, mean(y * y) - mean_y**2
    covariance = mean(x * y) - mean_x * mean_y
    likeness = (2 * mean_x * mean_y + C1) * (2 * covariance + C2)
    return float((likeness / ((mean_x**2 + mean_y**2 + C1) * (var_x + var_y + C2))).mean())


@METRICS.register_module()
class ReconstructionMetric(BaseMetric):
    """PSNR and SSIM of reconstructed images, and use of the codebook over the whole data set.

    It scores the samples of :class:`ViTVQGAN`, with images rounded to 8 bits as in a file.

    Args:
        collect_device, prefix: see MMEngine's BaseMetric.

    Returns:
        ``reconstruction/psnr`` in dB and ``reconstruction/ssim``, means over the images;
        ``reconstruction/code_usage``, share of the codes that occur, in percent, and
        ``reconstruction/perplexity``, exponential of the entropy of the codes.

    Raises:
        ValueError: an image is smaller than 11x11 pixels.

    Example:
        >>> val_evaluator = dict(type='ReconstructionMetric')
    """

    default_prefix = 'reconstruction'

    def process(self, data_batch: Any, data_samples: Sequence[dict]) -> None:
        for sample in data_samples:
            images = sample['gt_img'], sample['pred_img']
            codes = torch.bincount(sample['codes'].flatten(), minlength=sample['num_codes'])
            # One result per image: MMEngine drops the repeated ones of several processes.
            self.results.append((psnr(*images), ssim(*images), codes.cpu().numpy()))

    def compute_metrics(self, results: List[tuple]) -> Dict[str, float]:
        ratios, similarities, counts = zip(*results)
        total = torch.from_numpy(np.sum(counts, 0))
        return dict(
            psnr=float(np.mean(ratios)),
            ssim=float(np.mean(similarities)),
            code_usage=100 * int(total.count_nonzero()) / len(total),
            perplexity=float(perplexity(total)),
        )
