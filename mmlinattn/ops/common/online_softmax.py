"""Softmax over tokens, chunk by chunk."""

from typing import Any, Optional, Tuple

import torch
from torch import Tensor


class OnlineSoftmax:
    """Online softmax: weights of chunks on a common scale, in one pass over the logits.

    Logits are (..., n), factors (..., 1). A row of masked logits only has weights 0 and share 1.
    """

    def __init__(self) -> None:
        self._top: Any = None
        self._mass: Any = None

    def add(self, logits: Tensor, mask: Optional[Tensor] = None) -> Tuple[Tensor, Optional[Tensor]]:
        """Return the weights of a chunk and the factor for earlier sums, None at the first."""
        if mask is not None:
            logits = logits.masked_fill(mask, torch.finfo(logits.dtype).min)
        top = logits.amax(-1, keepdim=True)
        if self._top is None:
            fade = None  # ONNX export by tracing would store a tensor of ones with a fixed size
        else:
            top = torch.maximum(self._top, top)
            fade = (self._top - top).exp()
        weights = (logits - top).exp_()
        if mask is not None:
            weights = weights.masked_fill(mask, 0)
        mass = weights.sum(-1, keepdim=True)
        self._mass = mass if fade is None else self._mass * fade + mass
        self._top = top
        return weights, fade

    def share(self) -> Tensor:
        """Return the factor that normalizes all sums."""
        return self._mass.where(self._mass > 0, 1).reciprocal()

    def log_mass(self) -> Tensor:
        """Return ``log(sum(exp(logits)))``; ``exp(logits - log_mass)`` are the final weights."""
        return self._top + self._mass.clamp(min=torch.finfo(self._mass.dtype).tiny).log()
