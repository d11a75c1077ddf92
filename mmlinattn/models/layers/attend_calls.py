"""Queries, keys and values that an attention gets, while a model runs."""

from contextlib import contextmanager
from typing import Any, Callable, ContextManager, Iterator, List, NamedTuple

from torch import Tensor, nn

from .base import BaseAttention, TokenLayout


class Call(NamedTuple):
    """Arguments of :meth:`BaseAttention.attend`: q, k, v (B, heads, N, d) and the token layout."""

    q: Tensor
    k: Tensor
    v: Tensor
    tokens: TokenLayout


@contextmanager
def method_replaced(module: nn.Module, name: str, method: Callable[..., Any]) -> Iterator[None]:
    """Replace a method of this one module inside the block."""
    outer = vars(module).get(name)
    setattr(module, name, method)
    try:
        yield
    finally:
        delattr(module, name)
        if outer is not None:
            setattr(module, name, outer)


def watch_attend(attn: BaseAttention, watch: Callable[[Call], object]) -> ContextManager[None]:
    """Call ``watch`` before each call of :meth:`BaseAttention.attend` inside the block.

    Its tensors are detached. Images of different sizes that are packed may come one by one.
    """
    attend = attn.attend

    def watched(q: Tensor, k: Tensor, v: Tensor, layout: TokenLayout) -> Tensor:
        watch(Call(q.detach(), k.detach(), v.detach(), layout))
        return attend(q, k, v, layout)

    return method_replaced(attn, 'attend', watched)


@contextmanager
def calls_of(attn: BaseAttention) -> Iterator[List[Call]]:
    """Record the arguments of :meth:`BaseAttention.attend` inside the block.

    Example:
        >>> import torch
        >>> from mmlinattn.models.layers import SoftmaxAttention
        >>> attn = SoftmaxAttention(8, 2)
        >>> with calls_of(attn) as calls:
        ...     out = attn(torch.randn(1, 6, 8), (2, 3))
        >>> calls[0].q.shape
        torch.Size([1, 2, 6, 4])
    """
    calls: List[Call] = []
    with watch_attend(attn, calls.append):
        yield calls
