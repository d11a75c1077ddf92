"""Numerical helpers of the operators: dtypes, chunks of tokens, tracing."""

import functools
import warnings
from contextlib import nullcontext
from typing import Any, ContextManager, List, Optional

import torch
import torch.nn.functional as F
from torch import Tensor


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return float32 for half types, the dtype itself otherwise."""
    return torch.promote_types(dtype, torch.float32)


def masked_softmax(logits: Tensor, mask: Optional[Tensor]) -> Tensor:
    """Compute a softmax over the last dim with exactly 0 where ``mask`` is True.

    A row of masked entries only becomes 0, never NaN.
    """
    if mask is None:
        return logits.softmax(-1)
    weights = logits.masked_fill(mask, torch.finfo(logits.dtype).min).softmax(-1)
    return weights.masked_fill(mask, 0)


def zero_padding(x: Tensor, mask: Optional[Tensor]) -> Tensor:
    """Return x, (B, N, C) or (B, heads, N, d), with zeros where ``mask`` (B, N) is True."""
    if mask is None:
        return x
    return x.masked_fill(mask[:, None, :, None] if x.dim() == 4 else mask[..., None], 0)


def no_autocast(x: Tensor) -> ContextManager:
    """Return a context that disables autocast on the device of ``x``."""
    if x.is_meta or not (is_tracing() or torch.is_autocast_enabled(x.device.type)):
        return nullcontext()  # entering autocast takes longer than the sums of a small map
    return torch.autocast(x.device.type, enabled=False)


def multiply(x: Tensor, weight: Tensor) -> Tensor:
    """Multiply (B, heads, N, in) by (out, in) or (heads, out, in), into (B, heads, N, out)."""
    return F.linear(x, weight) if weight.dim() == 2 else x @ weight.transpose(-2, -1)


def needs_gradient(*tensors: Optional[Tensor]) -> bool:
    """Return True if autograd records operations on these tensors."""
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


# Elements that are processed at once: chunks fit the cache of a CPU; on a GPU, launches are few.
# The scores of a chunk of tiles are more, so that its many small products keep several cores busy:
# ripple attention of 128 x 128 tokens, forward and backward on two cores, takes 254 ms with 2^18,
# 167 with 2^20, 159 with 2^21.
CPU_CHUNK, CPU_TILES = 2**18, 2**20
ACCELERATOR_CHUNK = 2**26


def chunk_budget(device: torch.device, tiles: bool = False) -> int:
    """Return the number of elements in a chunk of tokens, or of tiles."""
    if device.type not in ('cpu', 'meta'):
        return ACCELERATOR_CHUNK
    return CPU_TILES if tiles else CPU_CHUNK


def fits_cache(x: Tensor, width: Optional[int] = None) -> bool:
    """Return True if the intermediate tensors fit the last-level CPU cache.

    The plain formula is the fastest there. Always False on an accelerator, where autograd would
    store the intermediate tensors, half types in float32.

    Args:
        x: (B, heads, N, d).
        width: channels of the intermediate tensors (B, heads, N, width); d by default.
    """
    batch, heads, num_tokens, dim = x.shape
    return x.device.type == 'cpu' and batch * heads * num_tokens * (width or dim) <= 4 * CPU_CHUNK


def token_chunks(x: Tensor, width: Optional[int] = None) -> List[slice]:
    """Return slices of the tokens whose intermediate tensors fit a chunk.

    A single slice covers all tokens if they fit the cache, and while operations are traced or a
    dispatch mode is active.

    Args:
        x: (B, heads, N, d).
        width: channels of the intermediate tensors (B, heads, n, width); d by default.
    """
    if is_tracing() or has_dispatch_mode() or fits_cache(x, width):
        return [slice(None)]
    batch, heads, num_tokens, dim = x.shape
    size = max(chunk_budget(x.device) // max(batch * heads * (width or dim), 1), 64)
    return [slice(i, min(i + size, num_tokens)) for i in range(0, num_tokens, size)]


def chunk_of(x: Tensor, chunk: slice, dtype: torch.dtype) -> Tensor:
    """Return the tokens of a slice of :func:`token_chunks`, (B, heads, n, d), in a dtype."""
    # A slice or a cast without effect still takes 2 microseconds each.
    if chunk.start is not None:
        x = x[:, :, chunk]
    return x if x.dtype == dtype else x.to(dtype)


def put_chunk(out: Any, chunk: slice, part: Tensor, like: Tensor) -> Tensor:
    """Write a chunk into ``out`` and return it; a single chunk is returned without a copy.

    Args:
        out: a tensor like ``like``, or None at the first chunk.
    """
    if chunk.start is None:
        return part.to(like.dtype)
    out = torch.empty_like(like) if out is None else out
    out[:, :, chunk] = part
    return out


def token_major(
    x: Tensor, dim: Optional[int] = None, dtype: Optional[torch.dtype] = None
) -> Tensor:
    """Return an uninitialised (B, heads, N, dim) tensor with the memory layout (B, N, heads, dim).

    The output projection reads that layout. ``dim`` and ``dtype`` are those of x by default.
    """
    batch, heads, num_tokens, width = x.shape
    width = width if dim is None else dim
    return x.new_empty(batch, num_tokens, heads, width, dtype=dtype).transpose(1, 2)


@functools.cache
def warn_once(text: str, stacklevel: int = 3) -> None:
    """Warn of each text once in a process."""
    warnings.warn(text, stacklevel=stacklevel)


def active_tracer() -> Optional[str]:
    """Return a description of the active tracer (export, torch.func), or None.

    torch.compile is not one of them: it accepts custom operators.
    """
    if is_exporting():
        return 'the model is being exported'
    if torch._C._are_functorch_transforms_active():
        return 'a transform of torch.func is running'
    return None


def has_dispatch_mode() -> bool:
    """Return True if a TorchDispatchMode is active, such as fake tensors or a FLOP counter."""
    return torch._C._len_torch_dispatch_stack() > 0


def in_forward_ad() -> bool:
    """Return True inside ``torch.autograd.forward_ad.dual_level``."""
    return torch.autograd.forward_ad._current_level >= 0


def is_capturing(device: torch.device) -> bool:
    """Return True while a CUDA graph is captured."""
    return device.type == 'cuda' and torch.cuda.is_current_stream_capturing()


def is_tracing() -> bool:
    """Return True while operations are traced: by torch.compile, an export or torch.func.

    Traced code uses plain operations on whole tensors: a compiler fuses them, ONNX has no others.
    """
    # is_compiling first: the compiler of torch 2.4 cannot trace the other checks.
    return (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or torch._C._are_functorch_transforms_active()
    )


def is_exporting() -> bool:
    """Return True inside ``torch.export``, ``torch.jit.trace`` or an ONNX export.

    Exported code must not write into a slice in place: inside an ``autograd.Function`` ONNX export
    by tracing drops such writes silently.
    """
    if not torch.compiler.is_compiling():  # first, as in is_tracing()
        return torch.jit.is_tracing()
    return getattr(torch.compiler, _EXPORTING)


# Not torch.compiler.is_exporting(): Dynamo evaluates it to True in torch.compile (torch 2.11). In
# torch 2.4 to 2.6 only an export with strict=False sets the other flag; nothing there tells
# strict=True from torch.compile.
_EXPORTING = (
    '_is_exporting_flag' if hasattr(torch.compiler, '_is_exporting_flag') else '_is_compiling_flag'
)


def is_static(*sizes: int) -> bool:
    """Return True if sizes are plain integers, not symbols or tensors of an exported graph."""
    plain = all(type(size) is int for size in sizes) and not _strictly_exported()
    return plain or not is_exporting()


def may_be_symbolic(*sizes: int) -> bool:
    """Return True if a size is, or may be, a symbol of ``torch.export`` with dynamic sizes."""
    symbols = any(isinstance(size, torch.SymInt) for size in sizes) or _strictly_exported()
    return symbols and is_exporting()


def _strictly_exported() -> bool:
    """Return True inside ``torch.export(strict=True)``, which shows symbols as plain integers.

    From torch 2.7 on strict export is an option, and the fallback of ONNX export after an error;
    it would then silently make sizes static.
    """
    return torch.compiler.is_dynamo_compiling() and _EXPORTING == '_is_exporting_flag'
