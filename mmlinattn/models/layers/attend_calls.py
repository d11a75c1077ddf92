"""Queries, keys and values that an attention gets, while a model runs."""

from contextlib import contextmanager
from typing import Callable, ContextManager, Iterator, List, NamedTuple
from unittest.mock import patch

from torch import Tensor

from .base import BaseAttention, TokenLayout


class Call(NamedTuple):
    """Arguments of :meth:`BaseAttention.attend`: q, k, v (B, heads, N, d) and the token layout."""

    q: Tensor
    k: Tensor
    v: Tensor
    tokens: TokenLayout


def watch_attend(attn: BaseAttention, watch: Callable[[Call], object]) -> ContextManager[object]:
    """Call ``watch`` before each call of :meth:`BaseAttention.attend` inside the block.

    Its tensors are detached. Images of different sizes that are packed may come one by one.
    """
    attend = attn.attend

    def watched(q: Tensor, k: Tensor, v: Tensor, layout: TokenLayout) -> Tensor:
        watch(Call(q.detach(), k.detach(), v.detach(), layout))
        return attend(q, k, v, layout)

    return patch.object(attn, 'attend', watched)


@contextmanager
def calls_of(attn: BaseAttention) -> Iterator[List[Call]]:
    """Record the arguments of :meth:`BaseAttention.attend` inside the block."""
    calls: List[Call] = []
    with watch_attend(attn, calls.append):
        yield calls
