"""Distributed wrapper of models with several optimizers."""

from typing import Any, Dict

from mmengine.model import MMDistributedDataParallel
from mmengine.registry import MODEL_WRAPPERS
from torch import Tensor, nn


@MODEL_WRAPPERS.register_module()
class AlternatingDistributedDataParallel(MMDistributedDataParallel):
    """MMDistributedDataParallel for a model whose training step has several optimizers in turns.

    The model implements ``alternate(run, data, optim_wrapper)``, its training step, and calls
    ``run`` in place of itself. Each backward pass averages the gradients of its parameters over the
    processes. MMEngine's MMSeparateDistributedDataParallel wraps each part of the model instead,
    which renames parameters, so that its EMAHook fails.

    Args:
        module: the model.
        others: see MMEngine's MMDistributedDataParallel.

    Example:
        >>> model_wrapper_cfg = dict(type='AlternatingDistributedDataParallel')
    """

    def __init__(self, module: nn.Module, broadcast_buffers: bool = False, **kwargs: Any) -> None:
        # The parameters of one optimizer take no part in the step of the other.
        kwargs['find_unused_parameters'] = True
        super().__init__(module, broadcast_buffers=broadcast_buffers, **kwargs)

    def train_step(self, data: Any, optim_wrapper: Any) -> Dict[str, Tensor]:
        return self.module.alternate(self, data, optim_wrapper)
