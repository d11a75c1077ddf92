"""Small numerical helpers that several operators need."""

from contextlib import nullcontext
from typing import ContextManager, Optional

import torch
from torch import Tensor


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """float32 for half types, the type itself otherwise."""
    return torch.promote_types(dtype, torch.float32)


def masked_softmax(logits: Tensor, mask: Optional[Tensor]) -> Tensor:
    """Softmax over the last dim; entries where ``mask`` is True get exactly 0.

    A row that is all masked becomes all zeros, never NaN.
    """
    if mask is None:
        return logits.softmax(-1)
    weights = logits.masked_fill(mask, torch.finfo(logits.dtype).min).softmax(-1)
    return weights.masked_fill(mask, 0)


def no_autocast(x: Tensor) -> ContextManager:
    """Keeps what is computed inside in the types that it is given in, on the device of ``x``."""
    return nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)
