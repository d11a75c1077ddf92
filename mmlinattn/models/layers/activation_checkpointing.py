"""Activation checkpointing that keeps the chosen backend and the batch-norm statistics."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from ...ops.common.dispatch import active_backend, use_backend


class RecomputeContext(AbstractContextManager):
    """Context in which the backward pass recomputes a module.

    Batch norms write to copies of their running statistics, so that a batch counts once. Operators
    use the backend that was active at construction, since the backward pass may run after the
    ``use_backend`` block. The context can be entered repeatedly, for a graph
    that is kept for several backward passes.
    """

    def __init__(self, module: nn.Module) -> None:
        self.norms = [m for m in module.modules() if isinstance(m, _BatchNorm)]
        self.backend = active_backend()

    def __enter__(self) -> None:
        same = self.backend == active_backend()  # autograd has a thread for each device
        self.backend_context = nullcontext() if same else use_backend(self.backend)
        self.backend_context.__enter__()
        self.saved_buffers = [dict(norm._buffers) for norm in self.norms]
        for norm in self.norms:
            for name, value in norm._buffers.items():
                norm._buffers[name] = None if value is None else value.clone()

    def __exit__(self, *error) -> None:
        for norm, buffers in zip(self.norms, self.saved_buffers):
            norm._buffers.update(buffers)
        self.backend_context.__exit__(*error)


def checkpoint_block(block: nn.Module, tokens: Tensor, *args) -> Tensor:
    """Return ``block(tokens, *args)`` and recompute it in the backward pass.

    The recomputation does not update the statistics of batch norms.
    """
    # A compiled graph updates statistics once and does not support contexts.
    if torch.compiler.is_compiling():
        return checkpoint(block, tokens, *args, use_reentrant=False)
    recompute_context = RecomputeContext(block)
    contexts = nullcontext(), recompute_context
    return checkpoint(block, tokens, *args, use_reentrant=False, context_fn=lambda: contexts)
