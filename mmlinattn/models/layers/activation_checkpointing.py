"""Activation checkpointing: a block that is computed again goes the way that it went before."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Callable, Tuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from ...ops.common.dispatch import choice, use_backend


class Again(AbstractContextManager):
    """Inside of it a module is computed for the second time.

    Its batch norms write to copies of their running statistics, and its operators have the backend
    that was chosen when this was made: the backward pass may run in another thread, or after the
    block that chose. It can be entered again, as a graph that is kept goes backward more than once.
    """

    def __init__(self, module: nn.Module) -> None:
        self.norms = [m for m in module.modules() if isinstance(m, _BatchNorm)]
        self.backend = choice.backend

    def __enter__(self) -> None:
        self.chosen = use_backend(self.backend)
        self.chosen.__enter__()
        self.kept = [dict(norm._buffers) for norm in self.norms]
        for norm in self.norms:
            for name, value in norm._buffers.items():
                norm._buffers[name] = None if value is None else value.clone()

    def __exit__(self, *error) -> None:
        for norm, buffers in zip(self.norms, self.kept):
            norm._buffers.update(buffers)
        self.chosen.__exit__(*error)


def recomputed(block: nn.Module, tokens: Tensor, *args) -> Tensor:
    """``block(tokens, *args)``, computed again in the backward pass, which does not count as a
    second batch for its batch norms.

    Example:
        >>> norm = nn.BatchNorm1d(2)
        >>> recomputed(norm, torch.randn(3, 2, requires_grad=True)).sum().backward()
        >>> int(norm.num_batches_tracked)
        1
    """
    return _recomputed(block, block, tokens, *args)


def recompute_forward(module: nn.Module) -> None:
    """From now on training calls ``module.forward`` once more in the backward pass, in place of
    keeping what it computed; names of parameters stay. Hooks run once, around the first call.

    Example:
        >>> layer = nn.Linear(2, 3)
        >>> recompute_forward(layer)
        >>> layer(torch.randn(1, 2)).sum().backward()
        >>> layer.weight.grad.shape
        torch.Size([3, 2])
    """
    forward = module.forward

    def recomputed_forward(*args, **kwargs):
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        return _recomputed(module, forward, *args, **kwargs)

    module.forward = recomputed_forward


def _recomputed(module: nn.Module, function: Callable, *args, **kwargs) -> Any:
    # A compiled graph updates statistics once, and takes no contexts.
    if torch.compiler.is_compiling():
        return checkpoint(function, *args, use_reentrant=False, **kwargs)
    again = Again(module)

    def contexts() -> Tuple[AbstractContextManager, AbstractContextManager]:
        return nullcontext(), again

    return checkpoint(function, *args, use_reentrant=False, context_fn=contexts, **kwargs)
