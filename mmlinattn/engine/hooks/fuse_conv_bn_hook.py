"""Fusion of batch norms into the preceding convolutions, for inference."""

from mmcv.cnn.utils import fuse_conv_bn
from mmengine.hooks import EMAHook, Hook
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..model import unwrapped


@HOOKS.register_module()
class FuseConvBNHook(Hook):
    """Hook that fuses batch norms into the preceding convolutions after the checkpoint is loaded.

    Predictions are equal up to rounding, and each such map needs one pass less.
    ``mmlinattn test --fuse-conv-bn`` adds the hook. Use it for tests only: fusing changes the
    parameters that would be trained or saved.

    Example:
        >>> custom_hooks = [dict(type='FuseConvBNHook')]
    """

    def before_test(self, runner: Runner) -> None:
        model = unwrapped(runner.model)
        before = count_batch_norms(model)
        fuse_conv_bn(model.eval())
        left = count_batch_norms(model)
        runner.logger.info(f'{before - left} of {before} batch norms are inside convolutions now')


def check_fusion(runner: Runner) -> None:
    """Raise ValueError unless :class:`FuseConvBNHook` can be used.

    It needs a model with batch norm, and no EMAHook, which later changes parameters by name.
    """
    if any(isinstance(hook, EMAHook) for hook in runner.hooks):
        raise ValueError('--fuse-conv-bn does not go with an EMAHook: remove it from custom_hooks')
    if count_batch_norms(runner.model) == 0:
        raise ValueError('--fuse-conv-bn: the model has no batch norm')


def count_batch_norms(model: nn.Module) -> int:
    """Return the number of batch norms, of any dimension, in a module."""
    return sum(isinstance(module, _BatchNorm) for module in model.modules())
