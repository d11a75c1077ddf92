"""Image models that give pictures: reconstruction through a codebook."""

from .perceptual_loss import VGGPerceptualLoss
from .reconstruction_losses import adversarial_losses, logit_laplace_loss
from .style_discriminator import StyleDiscriminator
from .vector_quantizer import VectorQuantizer
from .vit_decoder import TanhMLP, ViTDecoder
from .vit_vqgan import ViTVQGAN

__all__ = [
    'StyleDiscriminator',
    'TanhMLP',
    'VGGPerceptualLoss',
    'VectorQuantizer',
    'ViTDecoder',
    'ViTVQGAN',
    'adversarial_losses',
    'logit_laplace_loss',
]
