"""Optimizers of generator and discriminator from one config."""

from typing import Any, Dict

from mmengine.model import BaseModel
from mmengine.optim import DefaultOptimWrapperConstructor, OptimWrapperDict
from mmengine.registry import OPTIM_WRAPPER_CONSTRUCTORS
from torch import nn

from .model import unwrapped

DISCRIMINATOR = 'discriminator'


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class GeneratorDiscriminatorConstructor(DefaultOptimWrapperConstructor):
    """Constructor of two optimizers with the same options for a model with a discriminator.

    One gets the parameters below ``model.discriminator``, the other the rest. Names in
    ``paramwise_cfg.custom_keys`` are those of the model, so that
    ``custom_keys={'discriminator': dict(lr_mult=2)}`` gives the discriminator another rate.

    Args:
        optim_wrapper_cfg, paramwise_cfg: see MMEngine's DefaultOptimWrapperConstructor.

    Returns:
        MMEngine's OptimWrapperDict with ``generator`` and, unless ``model.discriminator`` is None,
        ``discriminator``.

    Raises:
        ValueError: the model has no attribute ``discriminator``.

    Example:
        >>> optim_wrapper = dict(
        ...     constructor='GeneratorDiscriminatorConstructor',
        ...     optimizer=dict(type='AdamW', lr=1e-4, betas=(0.9, 0.99), weight_decay=1e-4))
    """

    def __call__(self, model: BaseModel) -> OptimWrapperDict:
        model = unwrapped(model)
        parts: Dict[str, Any] = dict(model.named_children())
        if not hasattr(model, DISCRIMINATOR):
            raise ValueError(
                f'GeneratorDiscriminatorConstructor needs a model with a discriminator, '
                f'{type(model).__name__} has none'
            )
        rest = {name: part for name, part in parts.items() if name != DISCRIMINATOR}
        wrappers = dict(generator=super().__call__(nn.ModuleDict(rest)))
        if getattr(model, DISCRIMINATOR) is not None:
            own = {DISCRIMINATOR: parts[DISCRIMINATOR]}
            wrappers[DISCRIMINATOR] = super().__call__(nn.ModuleDict(own))
        return OptimWrapperDict(**wrappers)
