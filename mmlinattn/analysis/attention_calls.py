"""Tensors that an attention gets in a forward pass of its model."""

from contextlib import contextmanager
from typing import Iterator, List, NamedTuple

from torch import Tensor

from ..models.layers import BaseAttention, TokenLayout


class Call(NamedTuple):
    """Arguments of :meth:`BaseAttention.attend`: q, k, v (B, heads, N, d) and the token layout."""

    q: Tensor
    k: Tensor
    v: Tensor
    tokens: TokenLayout


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
    attend = attn.attend

    def keep(q: Tensor, k: Tensor, v: Tensor, layout: TokenLayout) -> Tensor:
        calls.append(Call(q.detach(), k.detach(), v.detach(), layout))
        return attend(q, k, v, layout)

    attn.attend = keep  # type: ignore[method-assign]  # of this object
    try:
        yield calls
    finally:
        del attn.attend
