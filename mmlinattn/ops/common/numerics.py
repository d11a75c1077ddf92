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
    if x.is_meta or not (one_graph() or torch.is_autocast_enabled(x.device.type)):
        return nullcontext()  # the other takes longer than to add up a small map
    return torch.autocast(x.device.type, enabled=False)


def needs_gradient(*tensors: Optional[Tensor]) -> bool:
    """Whether autograd follows what is computed from these; else a plain call is faster."""
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


# Numbers that are worked on at once: chunks stay in the cache of a CPU; on a GPU, few launches.
# The scores of a chunk of tiles are more, for its many small products to keep several cores busy:
# ripple attention of 128 x 128 tokens, forward and backward on two cores, takes 254 ms with 2^18,
# 167 with 2^20, 159 with 2^21.
CPU_CHUNK, CPU_TILES = 2**18, 2**20
ACCELERATOR_CHUNK = 2**26


def chunk_budget(device: torch.device, tiles: bool = False) -> int:
    """Numbers of a chunk, of tokens or of tiles."""
    if device.type not in ('cpu', 'meta'):
        return ACCELERATOR_CHUNK
    return CPU_TILES if tiles else CPU_CHUNK


def fits_cache(x: Tensor, width: Optional[int] = None) -> bool:
    """Whether what is computed of x (B, heads, N, d) in one piece, (B, heads, N, width), stays in
    the last cache of a CPU: the plain formula is the fastest there. ``width`` is d by default. On
    an accelerator never: there it would be kept for the backward pass, half types in float32."""
    batch, heads, num_tokens, dim = x.shape
    return x.device.type == 'cpu' and batch * heads * num_tokens * (width or dim) <= 4 * CPU_CHUNK


def token_chunks(x: Tensor, width: Optional[int] = None) -> List[slice]:
    """Slices of the tokens of x (B, heads, N, d) of which (B, heads, n, width) numbers are small.

    All tokens are one slice where that fits the cache, and where operations are recorded or
    watched. ``width`` is d by default.
    """
    if one_graph() or watched() or fits_cache(x, width):
        return [slice(None)]
    batch, heads, num_tokens, dim = x.shape
    size = max(chunk_budget(x.device) // max(batch * heads * (width or dim), 1), 64)
    return [slice(i, min(i + size, num_tokens)) for i in range(0, num_tokens, size)]


def token_major(
    x: Tensor, dim: Optional[int] = None, dtype: Optional[torch.dtype] = None
) -> Tensor:
    """Uninitialised (B, heads, N, dim) beside x (B, heads, N, d), stored token by token as an
    output projection reads it; d and the type of x by default."""
    batch, heads, num_tokens, width = x.shape
    width = width if dim is None else dim
    return x.new_empty(batch, num_tokens, heads, width, dtype=dtype).transpose(1, 2)


def recorded_by() -> Optional[str]:
    """Who besides a compiler records operations, in words; None where nobody does."""
    if exported():
        return 'the model is being exported'
    if torch._C._are_functorch_transforms_active():
        return 'a transform of torch.func is running'
    return None


def watched() -> bool:
    """Whether a mode of torch sees every operation, such as fake tensors or a counter."""
    return torch._C._len_torch_dispatch_stack() > 0


def forward_mode() -> bool:
    """Whether derivatives are taken forwards, along with the values."""
    return torch.autograd.forward_ad._current_level >= 0


def one_graph() -> bool:
    """Whether operations are recorded, which wants plain ones on whole tensors: a compiler fuses
    them by itself, ONNX has no others."""
    # A compiler first: that of torch 2.4 does not know the rest.
    return torch.compiler.is_compiling() or recorded_by() is not None


def exported() -> bool:
    """Whether the operations are recorded to run elsewhere, maybe at other sizes: by
    ``torch.export``, ``torch.jit.trace`` or ONNX's export. Nothing may then be written in place
    into a part of a tensor: inside an ``autograd.Function`` ONNX's export by tracing drops that
    without a word."""
    if not torch.compiler.is_compiling():  # first, as in one_graph()
        return torch.jit.is_tracing()
    return getattr(torch.compiler, _EXPORTING)


# Not is_exporting(): in torch.compile, Dynamo takes that to be True (torch 2.11). In torch 2.4 to
# 2.6 an export alone sets the other, and only with strict=False: nothing tells strict=True there
# from torch.compile.
_EXPORTING = (
    '_is_exporting_flag' if hasattr(torch.compiler, '_is_exporting_flag') else '_is_compiling_flag'
)


def known(*sizes: int) -> bool:
    """Whether sizes are plain integers, not the symbols or tensors of an exported graph."""
    plain = all(type(size) is int for size in sizes) and not _strictly_exported()
    return plain or not exported()


def symbolic(*sizes: int) -> bool:
    """Whether one of the sizes is a symbol, as dynamic sizes are in ``torch.export``, or may be."""
    symbols = any(isinstance(size, torch.SymInt) for size in sizes) or _strictly_exported()
    return symbols and exported()


def _strictly_exported() -> bool:
    """Whether ``torch.export(strict=True)`` records, to which symbols are plain integers. From
    torch 2.7 on that is a choice, or what ONNX's export tries after an error of the other way, and
    then would make sizes fixed without a word."""
    return torch.compiler.is_dynamo_compiling() and _EXPORTING == '_is_exporting_flag'
