"""Softmax over tokens, chunk by chunk."""

from typing import Optional, Tuple, Union

import torch
from torch import Tensor


class OnlineSoftmax:
    """Online softmax: weights of chunks on a common scale, in one pass over the logits.

    ``add`` returns the weights of a chunk and the factor for sums over earlier chunks. At the end
    ``share()`` returns the factor for all sums. Logits are (..., n), sums and factors (..., 1). A
    row of masked logits only has weights 0 and share 1.

    Example:
        >>> import torch
        >>> logits, values = torch.randn(3, 7), torch.randn(7, 2)
        >>> softmax, total = OnlineSoftmax(), 0
        >>> for part in (slice(0, 4), slice(4, 7)):
        ...     weights, fade = softmax.add(logits[:, part])
        ...     total = total * fade + weights @ values[part]
        >>> torch.allclose(total * softmax.share(), logits.softmax(-1) @ values, atol=1e-6)
        True
    """

    def __init__(self) -> None:
        self._top: Optional[Tensor] = None
        self._mass: Optional[Tensor] = None

    def add(
        self, logits: Tensor, mask: Optional[Tensor] = None
    ) -> Tuple[Tensor, Union[int, Tensor]]:
        """Return the weights of a chunk and the factor for earlier sums.

        Args:
            logits: (..., n).
            mask: True excludes a token.
        """
        if mask is not None:
            logits = logits.masked_fill(mask, torch.finfo(logits.dtype).min)
        top = logits.amax(-1, keepdim=True)
        if self._top is None:
            fade = 1  # ONNX export by tracing would store a tensor of ones with a fixed size
        else:
            top = torch.maximum(self._top, top)
            fade = (self._top - top).exp()
        weights = (logits - top).exp_()
        if mask is not None:
            weights = weights.masked_fill(mask, 0)
        mass = weights.sum(-1, keepdim=True)
        self._mass = mass if self._mass is None else self._mass * fade + mass
        self._top = top
        return weights, fade

    def share(self) -> Tensor:
        """Return the factor that normalizes all sums."""
        assert self._mass is not None
        return self._mass.where(self._mass > 0, 1).reciprocal()

    def log_mass(self) -> Tensor:
        """Return ``log(sum(exp(logits)))``; ``exp(logits - log_mass)`` are the final weights."""
        assert self._top is not None and self._mass is not None
        return self._top + self._mass.clamp(min=torch.finfo(self._mass.dtype).tiny).log()
