"""Mixed precision on the CPU, where MMEngine's own wrapper needs a GPU."""

from contextlib import ExitStack, contextmanager
from functools import wraps
from operator import attrgetter
from typing import Any, Iterator, Optional

import torch
from mmengine.optim import OptimWrapper
from mmengine.registry import OPTIM_WRAPPERS
from torch import Tensor, nn

from ..model import unwrapped


@OPTIM_WRAPPERS.register_module()
class CPUAmpOptimWrapper(OptimWrapper):
    """Optimizer wrapper with bfloat16 autocast on the CPU in backbone and neck, float32 in heads.

    MMCV's CPU operators (RoIAlign, NMS) do not support bfloat16, so the heads stay in float32. A
    model can name other modules in its attribute ``amp_parts``.
    bfloat16 has the range of float32, so the loss is not scaled.

    Args:
        others: see MMEngine's OptimWrapper.
    """

    @contextmanager
    def optim_context(self, model: nn.Module) -> Iterator[None]:
        inner = unwrapped(model)
        names = getattr(inner, 'amp_parts', ('backbone', 'neck'))
        parts = [part for part in (_part(inner, name) for name in names) if part is not None]
        with super().optim_context(model), ExitStack() as stack:
            for part in parts:
                stack.enter_context(_in_bfloat16(part))
            yield


def _part(model: nn.Module, name: str) -> Optional[nn.Module]:
    """Return a module by its dotted name, or None."""
    try:
        return attrgetter(name)(model)
    except AttributeError:
        return None


@contextmanager
def _in_bfloat16(module: nn.Module) -> Iterator[None]:
    forward = module.forward

    @wraps(forward)
    def wrapped(*args, **kwargs):
        with torch.autocast('cpu', dtype=torch.bfloat16):
            return _to_float32(forward(*args, **kwargs))

    module.forward = wrapped
    try:
        yield
    finally:
        del module.forward


def _to_float32(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.float()
    return type(value)(map(_to_float32, value)) if isinstance(value, (list, tuple)) else value
