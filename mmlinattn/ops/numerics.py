"""Small numerical helpers that several operators need."""

from contextlib import nullcontext
from typing import ContextManager, List, Optional

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


# Numbers of a (B, heads, n, width) chunk: they stay in the cache of a CPU; on a GPU, few launches.
CPU_CHUNK = 2**18
ACCELERATOR_CHUNK = 2**26


def token_chunks(x: Tensor, width: Optional[int] = None) -> List[slice]:
    """Slices of the tokens of x (B, heads, N, d) of which (B, heads, n, width) numbers are small.

    All tokens are one slice where :func:`one_graph` holds. ``width`` is d by default.
    """
    if one_graph():
        return [slice(None)]
    batch, heads, num_tokens, dim = x.shape
    budget = CPU_CHUNK if x.device.type in ('cpu', 'meta') else ACCELERATOR_CHUNK
    size = max(budget // max(batch * heads * (width or dim), 1), 64)
    return [slice(i, min(i + size, num_tokens)) for i in range(0, num_tokens, size)]


def empty_tokens(x: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    """Uninitialised (B, heads, N, dim) beside x (B, heads, N, d), stored token by token as an
    output projection reads it."""
    batch, heads, num_tokens, _ = x.shape
    return x.new_empty(batch, num_tokens, heads, dim, dtype=dtype).transpose(1, 2)


def one_graph() -> bool:
    """Whether operations are recorded: by a compiler, an exporter or a transform of torch.func.

    These want plain operations on whole tensors; a compiler fuses them by itself.
    """
    return (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or torch.onnx.is_in_onnx_export()
        or torch._C._are_functorch_transforms_active()
    )
