"""Optimizers of generator and discriminator, and their distributed wrapper."""

from typing import Any, Dict

from mmengine.model import BaseModel, MMDistributedDataParallel
from mmengine.optim import DefaultOptimWrapperConstructor, OptimWrapperDict
from mmengine.registry import MODEL_WRAPPERS, OPTIM_WRAPPER_CONSTRUCTORS
from torch import Tensor, nn

from ...engine.model import unwrapped

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
        own = parts.pop(DISCRIMINATOR, None)
        generator = nn.Module()
        for name, part in parts.items():
            generator.add_module(name, part)
        for name, parameter in model.named_parameters(recurse=False):
            generator.register_parameter(name, parameter)
        wrappers = dict(generator=super().__call__(generator))
        if own is not None:
            wrappers[DISCRIMINATOR] = super().__call__(nn.ModuleDict({DISCRIMINATOR: own}))
        return OptimWrapperDict(**wrappers)


@MODEL_WRAPPERS.register_module()
class AlternatingDistributedDataParallel(MMDistributedDataParallel):
    """MMDistributedDataParallel for a model whose training step has several optimizers in turns.

    The model's ``train_step`` takes ``run``, this wrapper, and calls it in place of itself. Each
    backward pass averages the gradients of its parameters over the processes. MMEngine's
    MMSeparateDistributedDataParallel wraps each part of the model instead, which renames
    parameters, so that its EMAHook fails.

    Args:
        module: the model.
        broadcast_buffers, kwargs: options of MMEngine's MMDistributedDataParallel.

    Example:
        >>> model_wrapper_cfg = dict(type='AlternatingDistributedDataParallel')
    """

    def __init__(self, module: nn.Module, broadcast_buffers: bool = False, **kwargs: Any) -> None:
        # The parameters of one optimizer take no part in the step of the other.
        kwargs['find_unused_parameters'] = True
        super().__init__(module, broadcast_buffers=broadcast_buffers, **kwargs)

    def train_step(self, data: Any, optim_wrapper: Any) -> Dict[str, Tensor]:
        return self.module.train_step(data, optim_wrapper, run=self)
