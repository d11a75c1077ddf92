"""ViT-VQGAN: images through a codebook and back, with any attention."""

from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

import torch
import torch.nn.functional as F
from mmengine.logging import print_log
from mmengine.model import BaseModel
from mmengine.optim import OptimWrapperDict
from mmengine.registry import MODELS
from mmengine.structures import BaseDataElement
from torch import Tensor, nn
from torch.func import functional_call

from ...models.backbones.vision_transformer import ViT
from ...models.layers import map_to_tokens, tokens_to_map
from ...ops.common.numerics import no_autocast
from ...utils import check_number
from ...utils.errors import InputError
from .reconstruction_losses import adversarial_losses, logit_laplace_loss, perplexity
from .vit_decoder import TanhMLP, ViTDecoder

# Section 3.3 of the paper; the quantiser weighs its own loss.
LOSS_WEIGHTS = dict(l2=1.0, logit_laplace=0.1, perceptual=0.1, adversarial=0.1)
GENERATOR, DISCRIMINATOR = 'generator', 'discriminator'


@MODELS.register_module()
class ViTVQGAN(BaseModel):
    """ViT-VQGAN (Yu et al., "Vector-quantized Image Modeling with Improved VQGAN", ICLR 2022) with
    any attention in encoder and decoder.

    A :class:`ViT` encodes an image to a map of tokens, and a :class:`TanhMLP` projects them to the
    dimensions of the codes. A :class:`VectorQuantizer` replaces each by the nearest code, from
    which a :class:`ViTDecoder` makes the image. Generator and discriminator have optimizers of
    their own: ``optim_wrapper`` needs ``constructor='GeneratorDiscriminatorConstructor'`` and, on
    several processes, ``model_wrapper_cfg=dict(type='AlternatingDistributedDataParallel')``.

    Args:
        backbone: config of the encoder, a :class:`ViT` without class token. The decoder has the
            same ``attn_cfg``.
        quantizer: config of the quantiser.
        decoder: options of :class:`ViTDecoder` that differ from those of the backbone, whose
            ``frozen_stages`` does not freeze it.
        discriminator: config of the discriminator, or None for no adversarial loss.
        perceptual: config of the perceptual loss, or None for no such loss; the log says so.
        loss_weights: weights that differ from the paper's: 1 of ``l2``, 0.1 of ``logit_laplace``,
            ``perceptual`` and ``adversarial``.
        data_preprocessor: gives RGB images in [0, 1]; encoder and decoder work in [-1, 1].
        init_cfg: MMEngine initialisation.

    Inputs:
        (B, 3, H, W) in [0, 1]; the patch size must divide H and W.

    Returns:
        with ``mode='tensor'`` the reconstruction (B, 3, H, W); with ``'predict'`` samples with
        ``pred_img`` and ``gt_img`` (3, H, W) uint8, ``codes`` (N,) and ``num_codes``; with
        ``'loss'`` the losses of the generator by name.

    Raises:
        ValueError: the backbone has a class token, several outputs or other images than RGB, the
            decoder another patch size, or an option is unknown or has a wrong value.
        mmlinattn.utils.errors.InputError: the patch size does not divide an image, or the first
            images of a training are outside of [0, 1].

    Example:
        >>> vit = dict(
        ...     type='ViT', arch=dict(embed_dims=32, num_heads=2, depth=1, patch_size=8),
        ...     img_size=32, attn_cfg='RWGKA', with_cls_token=False)
        >>> model = ViTVQGAN(vit, quantizer=dict(num_codes=64, code_dims=8)).eval()
        >>> model(torch.rand(2, 3, 32, 32)).shape
        torch.Size([2, 3, 32, 32])
    """

    # Parts that run in bfloat16 under CPUAmpOptimWrapper.
    amp_parts = ('backbone', 'decoder', 'discriminator')

    def __init__(
        self,
        backbone: dict,
        quantizer: Optional[dict] = None,
        decoder: Optional[dict] = None,
        discriminator: Optional[dict] = None,
        perceptual: Optional[dict] = None,
        loss_weights: Optional[dict] = None,
        data_preprocessor: Optional[dict] = None,
        init_cfg: Optional[dict] = None,
    ) -> None:
        super().__init__(data_preprocessor, init_cfg)
        unknown = sorted(set(loss_weights or {}) - set(LOSS_WEIGHTS))
        if unknown:
            raise ValueError(f'loss_weights has {unknown}; it takes {[*LOSS_WEIGHTS]}')
        self.loss_weights = dict(LOSS_WEIGHTS, **(loss_weights or {}))
        for name, weight in self.loss_weights.items():
            check_number(f'loss_weights.{name}', weight)
        self.backbone = MODELS.build(backbone)
        vit = self.backbone
        if (
            not isinstance(vit, ViT)
            or vit.num_extra_tokens(vit.num_built - 1)
            or (len(vit.out_indices), vit.out_type) != (1, 'featmap')
            or backbone.get('in_channels', 3) != 3
        ):
            raise ValueError(
                'model.backbone must be a ViT with with_cls_token=False, in_channels=3 and one map '
                f'as output: its tokens become codes; got {backbone}'
            )
        arch, options = self.backbone.arch, dict(backbone)
        self.patch_size = arch['patch_size']
        self.quantizer = MODELS.build(dict(dict(type='VectorQuantizer'), **(quantizer or {})))
        dims, code_dims = arch['embed_dims'], self.quantizer.code_dims
        self.pre_quant = TanhMLP(dims, int(arch['mlp_ratio'] * dims), code_dims)
        own = ('type', 'init_cfg', 'with_cls_token', 'in_channels', 'out_indices', 'frozen_stages')
        for name in own:
            options.pop(name, None)
        options['arch'] = {k: v for k, v in arch.items() if k != 'patch_size'}
        options['img_size'] = options.get('img_size') or arch.get('img_size', 224)
        options = dict(options, code_dims=code_dims, patch_size=self.patch_size)
        options.update(decoder or {})
        if options['patch_size'] != self.patch_size:
            raise ValueError(
                f"model.decoder.patch_size must be the encoder's, {self.patch_size}, got "
                f'{options["patch_size"]!r}'
            )
        self.decoder = ViTDecoder(**options)
        self.discriminator = _build(discriminator, 'StyleDiscriminator')
        self.perceptual = _build(perceptual, 'VGGPerceptualLoss')
        self._range_checked = False

    def init_weights(self) -> None:
        """Initialise all parts; the perceptual loss reads its weights."""
        super().init_weights()
        for name in ('perceptual', 'discriminator'):
            if getattr(self, name) is None:
                print_log(f'model.{name} is None: trained without this loss', 'current')

    def forward(
        self,
        inputs: Tensor,
        data_samples: Optional[list] = None,
        mode: str = 'tensor',
        reconstruction: Optional[Tensor] = None,
    ) -> Any:
        """Run the model.

        Args:
            inputs: images (B, 3, H, W) in [0, 1].
            data_samples: samples that predictions are added to.
            mode: ``'tensor'``, ``'predict'`` or ``'loss'``; in a training ``'generator'`` and
                ``'discriminator'``, its two steps.
            reconstruction: output of the first step, for the second.
        """
        if mode == 'tensor':
            return self.decode(self.encode(inputs).vectors, self.code_shape(inputs))
        if mode == 'predict':
            return self.predict(inputs, data_samples)
        if mode == 'loss':
            return self.generator_step(inputs)[0]
        if mode == GENERATOR:
            return self.generator_step(inputs)
        if mode == DISCRIMINATOR:
            if self.discriminator is None or reconstruction is None:
                raise ValueError(
                    f'mode={mode!r} needs model.discriminator and the reconstruction of '
                    f'mode={GENERATOR!r}'
                )
            fake, real = self.discriminator(torch.cat([reconstruction, inputs])).chunk(2)
            return dict(loss_discriminator=adversarial_losses(fake, real)[1])
        raise ValueError(f"mode must be 'tensor', 'predict' or 'loss', got {mode!r}")

    def code_shape(self, image: Tensor) -> Tuple[int, int]:
        """Return the (h, w) of the codes of images (B, 3, H, W), of whole patches."""
        height, width = image.shape[-2:]
        if height % self.patch_size or width % self.patch_size:
            raise InputError(
                f'images of {height}x{width} are no whole number of patches of '
                f'{self.patch_size}x{self.patch_size}: resize or crop them in the pipeline'
            )
        return height // self.patch_size, width // self.patch_size

    def encode(self, image: Tensor):
        """Return the :class:`Quantized` tokens of images (B, 3, H, W)."""
        self.code_shape(image)
        (features,) = self.backbone(2 * image - 1)
        return self.quantizer(self.pre_quant(map_to_tokens(features)))

    def decode(self, vectors: Tensor, code_shape: Sequence[int]) -> Tensor:
        """Return the images of vectors of codes (B, N, D) on a map (h, w)."""
        # Around grey: with an offset to learn first, all tokens would move to one code.
        vectors = vectors.to(next(self.decoder.parameters()).dtype)  # of a model in half precision
        return (self.decoder(tokens_to_map(vectors, code_shape)) + 1) / 2

    def decode_codes(self, codes: Tensor) -> Tensor:
        """Return the images (B, 3, H, W) of codes (B, h, w), for a second stage that draws them."""
        return self.decode(self.quantizer.vectors(codes.flatten(1)), codes.shape[1:])

    def predict(self, image: Tensor, data_samples: Optional[list] = None) -> List[BaseDataElement]:
        """Return a sample with reconstruction and codes for each image."""
        quantized = self.encode(image)
        pictures = self.decode(quantized.vectors, self.code_shape(image))
        samples = data_samples or [BaseDataElement() for _ in image]
        both = zip(_to_bytes(pictures), _to_bytes(image), quantized.codes)
        for sample, (pred_img, gt_img, codes) in zip(samples, both):
            found = dict(pred_img=pred_img, gt_img=gt_img, codes=codes)
            sample.set_data(dict(found, num_codes=self.quantizer.num_codes))
        return samples

    def generator_step(self, image: Tensor) -> Tuple[Dict[str, Tensor], Tensor]:
        """Return the losses of the generator by name, and the reconstruction without gradient."""
        quantized = self.encode(image)
        reconstruction = self.decode(quantized.vectors, self.code_shape(image)).float()
        weights = self.loss_weights
        with no_autocast(image):
            losses = dict(
                l2=F.mse_loss(reconstruction, image),
                logit_laplace=logit_laplace_loss(reconstruction, image),
            )
        if self.perceptual is not None:
            losses['perceptual'] = self.perceptual(reconstruction, image)
        if self.discriminator is not None:
            # The discriminator passes gradients on and gets none.
            constants = {name: p.detach() for name, p in self.discriminator.named_parameters()}
            fake = functional_call(self.discriminator, constants, reconstruction)
            losses['adversarial'] = adversarial_losses(fake, fake)[0]
        losses = {f'loss_{name}': weights[name] * loss for name, loss in losses.items()}
        losses = dict(loss_vq=quantized.loss, **losses)
        losses['perplexity'] = perplexity(quantized.codes.flatten().bincount()).float()
        return losses, reconstruction.detach()

    def train_step(
        self, data: Union[dict, tuple, list], optim_wrapper: Any, run: Optional[Callable] = None
    ) -> Dict[str, Tensor]:
        """Update generator and discriminator; return losses and the perplexity for the log.

        ``optim_wrapper`` is MMEngine's OptimWrapperDict with ``generator`` and, if the model has a
        discriminator, ``discriminator``. ``run`` is called in place of this model.
        """
        run = self if run is None else run
        if not isinstance(optim_wrapper, OptimWrapperDict) or GENERATOR not in optim_wrapper:
            raise InputError(
                'ViTVQGAN has two optimisers: set '
                "optim_wrapper.constructor='GeneratorDiscriminatorConstructor'"
            )
        inputs = self.data_preprocessor(data, True)['inputs']
        if not self._range_checked:  # once: a GPU would wait
            self._check_range(inputs)
            self._range_checked = True
        wrapper = optim_wrapper[GENERATOR]
        with wrapper.optim_context(run):
            losses, reconstruction = run(inputs, mode=GENERATOR)
        loss, logged = self.parse_losses(losses)
        wrapper.update_params(loss)
        if self.discriminator is not None:
            wrapper = optim_wrapper[DISCRIMINATOR]
            with wrapper.optim_context(run):
                losses = run(inputs, mode=DISCRIMINATOR, reconstruction=reconstruction)
            loss, _ = self.parse_losses(losses)
            wrapper.update_params(loss)
            logged.update(loss_discriminator=loss.detach())
        return logged

    def _check_range(self, image: Any) -> None:
        cure = 'set mean=[0, 0, 0] and std=[255, 255, 255] in model.data_preprocessor'
        if not isinstance(image, Tensor):
            raise InputError(f'images must be one tensor, got {type(image).__name__}: {cure}')
        low, high = (float(end) for end in image.aminmax())
        if not -0.1 <= low <= high <= 1.1:
            raise InputError(f'images must be in [0, 1], got {low:g} to {high:g}: {cure}')


def _build(cfg: Optional[dict], kind: str) -> Optional[nn.Module]:
    return None if cfg is None else MODELS.build(dict(dict(type=kind), **cfg))


def _to_bytes(image: Tensor) -> Tensor:
    """Return an image in [0, 1] as uint8, clamped and rounded."""
    return (image.float().clamp(0, 1) * 255).round().to(torch.uint8)
