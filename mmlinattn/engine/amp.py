"""Mixed precision where MMEngine's own wrapper needs a GPU."""

from contextlib import contextmanager
from typing import Iterator

import torch
from mmengine.optim import OptimWrapper
from mmengine.registry import OPTIM_WRAPPERS
from torch import nn


@OPTIM_WRAPPERS.register_module()
class CPUAmpOptimWrapper(OptimWrapper):
    """bfloat16 autocast on the CPU; bfloat16 has float32's range, so nothing scales the loss.

    Args:
        others: see MMEngine's OptimWrapper.
    """

    @contextmanager
    def optim_context(self, model: nn.Module) -> Iterator[None]:
        with super().optim_context(model), torch.autocast('cpu', dtype=torch.bfloat16):
            yield
