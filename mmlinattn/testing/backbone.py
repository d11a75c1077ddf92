"""Rules of a backbone with an attention, checked on a small model."""

import math
from functools import cached_property
from typing import Any, Dict, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn

from ..models.backbones import Backbone
from ..models.layers import AttnCfg, BaseAttention, build_attention, registered_subclasses
from .rules import Rules, compare, require, require_gradients

BACKBONE_RULES = Rules('constructor', 'outputs')


class BackboneCase:
    """Backbone with an attention in all stages, see :func:`check_backbone`."""

    def __init__(
        self, cls: type, attn_cfg: AttnCfg, image_size: Tuple[int, int], **options: Any
    ) -> None:
        self.cls, self.attn_cfg, self.options = cls, attn_cfg, options
        self.is_backbone = issubclass(cls, Backbone)
        self.attention = type(build_attention(attn_cfg, 16, 2))
        self.images = torch.randn(2, 3, *image_size, generator=torch.Generator().manual_seed(0))

    def build(self, **options: Any) -> Any:
        return self.cls(**{'attn_cfg': self.attn_cfg, **self.options, **options})

    @cached_property
    def model(self) -> Any:
        """The model of rules that do not change parameters or buffers."""
        return self.build()

    @torch.no_grad()
    def evaluate(self, model: nn.Module, images: Optional[Tensor] = None) -> Sequence[Tensor]:
        outs = model.eval()(self.images if images is None else images)
        model.train()
        return outs

    def gradients(
        self, model: nn.Module, images: Optional[Tensor] = None
    ) -> Dict[str, Optional[Tensor]]:
        """Return the gradients of all parameters by name, the same for the same model."""
        model.zero_grad(set_to_none=True)
        torch.manual_seed(2)
        images = self.images if images is None else images
        # Not the square of outputs, which has no gradient where they are 0.
        losses = [(out.float() - torch.randn(out.shape)).square().mean() for out in model(images)]
        torch.stack(losses).sum().backward()
        return {name: p.grad for name, p in model.named_parameters() if p.requires_grad}


def check_backbone(
    cls: type,
    attentions: Optional[Sequence[AttnCfg]] = None,
    *,
    image_size: Tuple[int, int] = (64, 80),
    rules: Optional[Sequence[str]] = None,
    **options: Any,
) -> None:
    """Check that a backbone obeys the rules in ``BACKBONE_RULES`` with each attention.

    Args:
        cls: :class:`Backbone`, or another module that is called as ``cls(attn_cfg=..., **options)``
            and maps images to a sequence of tensors.
        attentions: classes, names or configs of attentions; all registered ones by default.
        image_size: (height, width) of the images.
        rules: names of rules to check; all by default.
        options: arguments of the constructor, such as a small ``arch``.

    Raises:
        AssertionError: a rule is broken. The message has every broken rule and what was found.
        ValueError: a rule is unknown.
        TypeError: ``attentions`` is no list.

    Example:
        >>> from mmlinattn.models.backbones import ViT
        >>> arch = dict(embed_dims=16, num_heads=2, depth=1, patch_size=8)
        >>> check_backbone(ViT, ['RALA'], rules=['outputs'], arch=arch, img_size=(64, 80))
    """
    __tracebackhide__ = True
    if isinstance(attentions, (str, dict, type)):
        raise TypeError(f'attentions must be a list, got {attentions!r}')
    if attentions is None:
        attentions = list(registered_subclasses(BaseAttention))
    for attn_cfg in attentions:
        case = BackboneCase(cls, attn_cfg, image_size, **options)
        subject = f'{cls.__name__} with {case.attention.__name__}'
        if not refuses_extra_tokens(case):
            BACKBONE_RULES.check(subject, case, rules)


def refuses_extra_tokens(case: BackboneCase) -> bool:
    """Return True if the constructor says that the attention does not support its extra tokens."""
    if case.attention.supports_extra_tokens:
        return False
    try:
        return not case.model
    except Exception as error:
        return isinstance(error, ValueError) and 'does not support extra tokens' in str(error)


@BACKBONE_RULES.add
def constructor(case: BackboneCase) -> None:
    """Check that the backbone is built; a Backbone calls self.finish() at the end."""
    require(isinstance(case.model, nn.Module), f'it is a {type(case.model).__name__}')


@BACKBONE_RULES.add
def outputs(case: BackboneCase) -> None:
    """Check for one contiguous, finite output (B, C, H, W) or (B, C) per out_indices."""
    outs = case.evaluate(case.model)
    require(all(out.isfinite().all() for out in outs), 'an output is not finite')
    if case.is_backbone:
        count, dims = len(case.model.out_indices), 4 if case.model.out_type == 'featmap' else 2
        shapes = [tuple(out.shape) for out in outs]
        require(len(outs) == count, f'{len(outs)} outputs, expected {count}')
        require(all(len(shape) == dims for shape in shapes), f'the outputs have shapes {shapes}')
        require(all(out.is_contiguous() for out in outs), 'an output is not contiguous')


@BACKBONE_RULES.add
def parameters_learn(case: BackboneCase) -> None:
    """Check that every parameter gets a finite gradient that is not zero."""
    found = case.gradients(case.build())
    # If only the class token is returned, positions in the last attention have no effect.
    attentions = [n for n, m in case.model.named_modules() if isinstance(m, BaseAttention)]
    spared = attentions[-1] if getattr(case.model, 'out_type', '') == 'cls_token' else None
    names = [name for name in found if spared is None or not name.startswith(f'{spared}.')]
    require(names, 'the model has no parameters')
    require_gradients(names, [found[name] for name in names])


@BACKBONE_RULES.add
def padded_image(case: BackboneCase) -> None:
    """Check that gradients stay moderate if half of an image is 0, and finite for a black batch."""
    torch.manual_seed(1)
    model, norms = case.build(), []
    if hasattr(model, 'init_weights'):
        model.init_weights()
    padded = case.images.clone()
    padded[1, :, :, padded.shape[3] // 2 :] = 0  # as data preprocessors pad
    for images in (case.images, padded, torch.zeros_like(padded)):
        found = [grad for grad in case.gradients(model, images).values() if grad is not None]
        norms.append(float(torch.stack([grad.norm() for grad in found]).norm()))
    shown = '{:.2g}, half padded {:.2g}, black {:.2g}'.format(*norms)
    # Batch norm alone multiplies gradients of a black batch by 300 a layer.
    holds = norms[1] < 1e4 * norms[0] and all(map(math.isfinite, norms))
    require(holds, f'the norm of gradients is {shown}')


@BACKBONE_RULES.add
def bfloat16(case: BackboneCase) -> None:
    """Check that the outputs under bfloat16 autocast are close to float32."""
    with torch.autocast('cpu', dtype=torch.bfloat16):
        half = case.evaluate(case.model)
    for i, (a, b) in enumerate(zip(half, case.evaluate(case.model))):
        error = float((a.float() - b).norm() / b.norm())
        require(error < 0.04, f'relative error {error:.2g} of output {i}, allowed 0.04')


@BACKBONE_RULES.add
def images_are_independent(case: BackboneCase) -> None:
    """Check that in evaluation mode each image is computed by itself."""
    alone = case.evaluate(case.model, case.images[:1])
    for i, (a, b) in enumerate(zip(alone, case.evaluate(case.model))):
        compare(a, b[:1], f'output {i} of image 0 alone', 1e-4)


@BACKBONE_RULES.add
def weights(case: BackboneCase) -> None:
    """Check that another model that loads the state dict gives the same outputs."""
    torch.manual_seed(1)  # other initial values
    other = case.build()
    other.load_state_dict(case.model.state_dict())
    for i, (a, b) in enumerate(zip(case.evaluate(other), case.evaluate(case.model))):
        compare(a, b, f'output {i}', 0)
