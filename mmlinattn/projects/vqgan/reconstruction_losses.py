"""Losses of ViT-VQGAN on images."""

from typing import Tuple

import torch
import torch.nn.functional as F
from torch import Tensor

# Maps [0, 1] to [0.1, 0.9], where the logit is finite, as in DALL-E (Ramesh et al. 2021).
MARGIN = 0.1
GAN_LOSSES = ('non-saturating', 'hinge')


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


def adversarial_losses(kind: str, fake: Tensor, real: Tensor) -> Tuple[Tensor, Tensor]:
    """Return the loss of the generator and that of the discriminator.

    Args:
        kind: ``'non-saturating'`` (StyleGAN) or ``'hinge'`` (VQGAN).
        fake, real: logits (B,) of reconstructions and images.

    Returns:
        two scalars.

    Raises:
        ValueError: ``kind`` is neither.

    Example:
        >>> fake, real = torch.tensor([0.5]), torch.tensor([2.0])
        >>> [round(float(x), 3) for x in adversarial_losses('hinge', fake, real)]
        [-0.5, 1.5]
    """
    if kind not in GAN_LOSSES:
        raise ValueError(f'gan_loss must be one of {GAN_LOSSES}, got {kind!r}')
    fake, real = fake.float(), real.float()
    if kind == 'hinge':
        return -fake.mean(), F.relu(1 - real).mean() + F.relu(1 + fake).mean()
    return F.softplus(-fake).mean(), F.softplus(-real).mean() + F.softplus(fake).mean()


def perplexity(codes: Tensor, num_codes: int) -> Tensor:
    """Return the exponential of the entropy of codes, at most ``num_codes``.

    Args:
        codes: integers of any shape.
        num_codes: size of the codebook.

    Example:
        >>> round(float(perplexity(torch.tensor([0, 3, 3, 0]), 8)), 6)
        2.0
    """
    share = torch.bincount(codes.flatten(), minlength=num_codes).double() / codes.numel()
    return torch.special.entr(share).sum().exp()
