"""ViT-VQGAN: images through a codebook and back, with its losses, metrics and two optimizers.

A config registers them by ``custom_imports = dict(imports=['mmlinattn.projects.vqgan'])``.
"""

from .frechet_distance import FrechetDistance, frechet_distance
from .optim_constructor import AlternatingDistributedDataParallel, GeneratorDiscriminatorConstructor
from .perceptual_loss import VGGPerceptualLoss
from .reconstruction_losses import adversarial_losses, logit_laplace_loss
from .reconstruction_metric import ReconstructionMetric, psnr, ssim
from .style_discriminator import StyleDiscriminator
from .vector_quantizer import VectorQuantizer
from .vit_decoder import TanhMLP, ViTDecoder
from .vit_vqgan import ViTVQGAN

__all__ = [
    'AlternatingDistributedDataParallel', 'FrechetDistance',
    'GeneratorDiscriminatorConstructor', 'ReconstructionMetric', 'StyleDiscriminator',
    'TanhMLP', 'VGGPerceptualLoss', 'VectorQuantizer', 'ViTDecoder', 'ViTVQGAN',
    'adversarial_losses', 'frechet_distance', 'logit_laplace_loss', 'psnr', 'ssim',
]  # fmt: skip
