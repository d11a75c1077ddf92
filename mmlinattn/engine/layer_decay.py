"""Layer-wise decay of the learning rate for the backbones of this package."""

from typing import Any, List, Optional

from mmengine.optim import DefaultOptimWrapperConstructor
from mmengine.registry import OPTIM_WRAPPER_CONSTRUCTORS
from torch import nn

from ..models.backbones.base import Backbone


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class LayerDecayOptimWrapperConstructor(DefaultOptimWrapperConstructor):
    """MMEngine's constructor with a learning rate that falls from the head to the stem.

    With a backbone of L blocks, block l (1 to L) gets the rate times
    ``layer_decay_rate ** (L + 1 - l)`` and the stem the rate times ``layer_decay_rate ** (L + 1)``.
    A downsampling layer or a late class token belongs to the block after it. Neck, heads and norms
    of the outputs keep the rate. The other options of ``paramwise_cfg`` apply as well.

    Args:
        optim_wrapper_cfg, paramwise_cfg: as in MMEngine's DefaultOptimWrapperConstructor.
            ``paramwise_cfg`` must have ``layer_decay_rate``, in (0, 1].

    Raises:
        ValueError: ``layer_decay_rate`` is missing or outside of (0, 1], or the optimizer has no
            ``lr``.
        TypeError: ``model.backbone`` is not a backbone of this package.

    Source: Clark et al., ELECTRA (ICLR 2020), appendix A; Bao et al., BEiT (ICLR 2022).

    Example:
        >>> optim_wrapper = dict(
        ...     constructor='LayerDecayOptimWrapperConstructor',
        ...     optimizer=dict(type='AdamW', lr=1e-4, weight_decay=0.05),
        ...     paramwise_cfg=dict(layer_decay_rate=0.9, norm_decay_mult=0.0),
        ... )
    """

    def add_params(self, params: List[dict], module: nn.Module, prefix: str = '', **kwargs: Any):
        super().add_params(params, module, prefix, **kwargs)
        if prefix:
            return  # a call of this method for a part of the model
        rate = self.paramwise_cfg.get('layer_decay_rate')
        if not isinstance(rate, (int, float)) or not 0 < rate <= 1:
            raise ValueError(
                f'optim_wrapper.paramwise_cfg.layer_decay_rate must be in (0, 1], got {rate!r}'
            )
        base_lr: Optional[float] = self.base_lr
        if base_lr is None:
            raise ValueError(
                'optim_wrapper.optimizer.lr is missing: layer_decay_rate scales it in each layer'
            )
        backbone = getattr(module, 'backbone', None)
        if not isinstance(backbone, Backbone):
            raise TypeError(
                f'{type(self).__name__} needs a backbone of mmlinattn, but model.backbone is '
                f'{type(backbone).__name__}'
            )
        groups = backbone.layer_groups()
        scales = {
            id(parameter): rate ** (len(groups) - depth)
            for depth, group in enumerate(groups)
            for part in group
            for parameter in (part.parameters() if isinstance(part, nn.Module) else [part])
        }
        for group in params:
            scale = scales.get(id(group['params'][0]), 1.0)
            group['lr'] = group.get('lr', base_lr) * scale
