"""Batch norms inside the convolutions before them, for inference."""

from mmcv.cnn.utils import fuse_conv_bn
from mmengine.hooks import EMAHook, Hook
from mmengine.model import is_model_wrapper
from mmengine.registry import HOOKS
from mmengine.runner import Runner
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


@HOOKS.register_module()
class FuseConvBNHook(Hook):
    """Multiplies batch norms into the weights of the convolutions before them once the checkpoint
    is loaded: the same predictions up to rounding, one pass over each such map less.

    ``tools/test.py --fuse-conv-bn`` adds it. It is for tests alone: what is trained or saved
    afterwards has other parameters.

    Example:
        >>> custom_hooks = [dict(type='FuseConvBNHook')]
    """

    def before_test(self, runner: Runner) -> None:
        model = runner.model.module if is_model_wrapper(runner.model) else runner.model
        before = count_batch_norms(model)
        fuse_conv_bn(model.eval())
        left = count_batch_norms(model)
        runner.logger.info(f'{before - left} of {before} batch norms are inside convolutions now')


def check_fusion(runner: Runner) -> None:
    """Raise ValueError where :class:`FuseConvBNHook` cannot serve: beside an EMAHook, which
    changes parameters by their names later, and in a model without batch norm."""
    if any(isinstance(hook, EMAHook) for hook in runner.hooks):
        raise ValueError('--fuse-conv-bn does not go with an EMAHook: remove it from custom_hooks')
    if count_batch_norms(runner.model) == 0:
        raise ValueError('--fuse-conv-bn: the model has no batch norm')


def count_batch_norms(model: nn.Module) -> int:
    """Batch norms, of any number of dimensions, in a module."""
    return sum(isinstance(module, _BatchNorm) for module in model.modules())
