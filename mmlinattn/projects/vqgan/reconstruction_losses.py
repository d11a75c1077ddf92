"""Losses of ViT-VQGAN on images."""

from typing import Tuple

import torch
import torch.nn.functional as F
from torch import Tensor

# Maps [0, 1] to [0.1, 0.9], where the logit is finite, as in DALL-E (Ramesh et al. 2021).
MARGIN = 0.1


def logit_laplace_loss(reconstruction: Tensor, image: Tensor) -> Tensor:
    """Return the logit-Laplace loss of DALL-E (Ramesh et al. 2021, appendix A.3) at scale 1.

    That is ``|logit(m(x)) - logit(m(y))|`` with ``m(x) = 0.8 x + 0.1``, the part of the negative
    log-likelihood that depends on the reconstruction. ViT-VQGAN gives no formula. Its decoder has
    three channels, which leaves none for the scale. Reconstructions beyond -0.1 and 1.1 have no
    gradient here; that of the squared error is left.

    Args:
        reconstruction: (B, 3, H, W).
        image: (B, 3, H, W) in [0, 1].

    Returns:
        the mean, a scalar.

    Example:
        >>> image = torch.rand(1, 3, 4, 4)
        >>> float(logit_laplace_loss(image, image))
        0.0
    """
    low = MARGIN - MARGIN * (1 - 2 * MARGIN)  # m(-0.1)
    x, y = ((1 - 2 * MARGIN) * t + MARGIN for t in (reconstruction, image))
    return (x.clamp(low, 1 - low).logit() - y.logit()).abs().mean()


def adversarial_losses(fake: Tensor, real: Tensor) -> Tuple[Tensor, Tensor]:
    """Return StyleGAN's non-saturating losses of the generator and of the discriminator.

    Args:
        fake, real: logits (B,) of reconstructions and images.

    Returns:
        two scalars.

    Example:
        >>> fake, real = torch.tensor([0.5]), torch.tensor([2.0])
        >>> [round(float(x), 3) for x in adversarial_losses(fake, real)]
        [0.474, 1.101]
    """
    fake, real = fake.float(), real.float()
    return F.softplus(-fake).mean(), F.softplus(-real).mean() + F.softplus(fake).mean()


def perplexity(counts: Tensor) -> Tensor:
    """Return the exponential of the entropy of codes that occur ``counts`` times each.

    Example:
        >>> round(float(perplexity(torch.tensor([2, 0, 0, 2]))), 6)
        2.0
    """
    return torch.special.entr(counts.double() / counts.sum()).sum().exp()
