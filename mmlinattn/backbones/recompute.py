"""Activation checkpointing of blocks that keep running statistics."""

from contextlib import AbstractContextManager, nullcontext
from typing import Tuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint


class KeptStatistics(AbstractContextManager):
    """Inside of it the batch norms of a module write to copies of their running statistics.

    It can be entered again, as a graph that is kept goes backward more than once.
    """

    def __init__(self, module: nn.Module) -> None:
        self.norms = [m for m in module.modules() if isinstance(m, _BatchNorm)]

    def __enter__(self) -> None:
        self.kept = [dict(norm._buffers) for norm in self.norms]
        for norm in self.norms:
            for name, value in norm._buffers.items():
                norm._buffers[name] = None if value is None else value.clone()

    def __exit__(self, *_) -> None:
        for norm, buffers in zip(self.norms, self.kept):
            norm._buffers.update(buffers)


def recomputed(block: nn.Module, tokens: Tensor, *args) -> Tensor:
    """``block(tokens, *args)``, computed again in the backward pass, which does not count as a
    second batch for its batch norms.

    Example:
        >>> norm = nn.BatchNorm1d(2)
        >>> recomputed(norm, torch.randn(3, 2, requires_grad=True)).sum().backward()
        >>> int(norm.num_batches_tracked)
        1
    """
    # A compiled graph updates statistics once, and takes no contexts.
    if torch.compiler.is_compiling() or not (statistics := KeptStatistics(block)).norms:
        return checkpoint(block, tokens, *args, use_reentrant=False)

    def contexts() -> Tuple[AbstractContextManager, AbstractContextManager]:
        return nullcontext(), statistics

    return checkpoint(block, tokens, *args, use_reentrant=False, context_fn=contexts)
