"""Mixed precision on the CPU, where MMEngine's own wrapper needs a GPU."""

from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any, ContextManager, Iterator, Union
from unittest.mock import patch

import torch
from mmengine.optim import AmpOptimWrapper, OptimWrapper
from mmengine.registry import OPTIM_WRAPPERS
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ..model import unwrapped

DTYPES = ('bfloat16', 'float16')


@OPTIM_WRAPPERS.register_module()
class CPUAmpOptimWrapper(AmpOptimWrapper):
    """Optimizer wrapper with autocast on the CPU in backbone and neck, float32 in heads.

    MMCV's CPU operators (RoIAlign, NMS) need float32, so the heads stay in it. A model can name
    other modules in its attribute ``amp_parts``.

    Args:
        dtype: ``'bfloat16'``, or ``'float16'``, whose loss is scaled as on a GPU. Processors
            without float16 arithmetic emulate it: a step takes several times as long as in
            float32.
        loss_scale: scale of a float16 loss as of MMEngine's AmpOptimWrapper: ``'dynamic'``, a
            fixed number, or options of ``torch.amp.GradScaler``.
        kwargs: see MMEngine's OptimWrapper.

    Raises:
        ValueError: another ``dtype``.

    Example:
        >>> model = nn.Linear(2, 2)
        >>> wrapper = CPUAmpOptimWrapper(optimizer=torch.optim.SGD(model.parameters(), 0.1))
        >>> wrapper.cast_dtype
        torch.bfloat16
    """

    def __init__(
        self,
        dtype: Union[str, torch.dtype] = 'bfloat16',
        loss_scale: Union[str, float, dict] = 'dynamic',
        **kwargs,
    ) -> None:
        name = str(dtype).removeprefix('torch.')
        if name not in DTYPES:
            raise ValueError(f'optim_wrapper.dtype must be one of {DTYPES} on a CPU, got {name!r}')
        OptimWrapper.__init__(self, **kwargs)  # AmpOptimWrapper's own refuses to run without a GPU
        self._scale_update_param = None if isinstance(loss_scale, (str, dict)) else loss_scale
        self.cast_dtype = getattr(torch, name)
        options = loss_scale if isinstance(loss_scale, dict) else {}
        if self._scale_update_param is not None:
            options = dict(init_scale=loss_scale)
        # bfloat16 has the range of float32 and needs no scale.
        self.loss_scaler = torch.amp.GradScaler('cpu', enabled=name == 'float16', **options)

    def state_dict(self) -> dict:
        """Return the state of the optimizer, and of a scaler that is used."""
        state = super().state_dict()
        if not self.loss_scaler.is_enabled():  # a used scaler, as of a GPU, refuses an empty state
            del state['loss_scaler']
        return state

    @contextmanager
    def optim_context(self, model: nn.Module) -> Iterator[None]:
        inner = unwrapped(model)
        names = getattr(inner, 'amp_parts', ('backbone', 'neck'))
        methods = [(part, 'forward') for name, part in inner.named_modules() if name in names]
        if not hasattr(inner, 'amp_parts') and hasattr(inner, 'extract_feat'):
            methods.append((inner, 'extract_feat'))  # EoMT calls the layers of its backbone there
        with OptimWrapper.optim_context(self, model), ExitStack() as stack:
            for part, name in methods:
                stack.enter_context(_autocast(part, name, self.cast_dtype))
            yield


def _autocast(module: nn.Module, name: str, dtype: torch.dtype) -> ContextManager[object]:
    method = getattr(module, name)

    @wraps(method)
    def wrapped(*args, **kwargs):
        with torch.autocast('cpu', dtype=dtype):
            return tree_map(_to_float32, method(*args, **kwargs))

    return patch.object(module, name, wrapped)


def _to_float32(value: Any) -> Any:
    is_half = isinstance(value, Tensor) and value.dtype in (torch.bfloat16, torch.float16)
    return value.float() if is_half else value
