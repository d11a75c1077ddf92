"""Numerical helpers of the operators: dtypes, chunks of tokens, tracing."""

import functools
import threading
from contextlib import nullcontext
from typing import Any, Callable, ContextManager, Dict, List, Optional, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

HALF_TYPES = (torch.float16, torch.bfloat16)
Mask = Optional[Tensor]  # bool, True = padding
Half = Optional[torch.dtype]  # the result of factor_dtype


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return float32 for half types, the dtype itself otherwise.

    Example:
        >>> accumulation_dtype(torch.float16)
        torch.float32
    """
    return torch.float32 if dtype in HALF_TYPES else dtype


def factor_dtype(x: Tensor) -> Half:
    """Return the half type of x if its device sums products of half types in float32, else None.

    Such products run on tensor cores, float32 products do not. On a CPU, and while operations are
    traced (autograd cannot differentiate the product), the factors are float32.
    """
    return x.dtype if x.dtype in HALF_TYPES and sums_halves_in_float32(x) else None


def sums_halves_in_float32(x: Tensor) -> bool:
    device = x.device
    if device.type in ('cpu', 'meta') or is_tracing() or has_dispatch_mode():
        return False
    low_precision = getattr(torch.backends.cuda.matmul, 'allow_fp16_accumulation', False)
    return _has_mixed_product(device, x.dtype, low_precision)


@functools.cache
def _has_mixed_product(device: torch.device, dtype: torch.dtype, low_precision: bool) -> bool:
    # torch 2.8 has it on CUDA, later versions on ROCm and XPU; it raises an error elsewhere.
    x = torch.zeros(1, 8, 8, dtype=dtype, device=device)
    try:
        _mixed_product(x, x)
    except torch.cuda.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError):
        return False
    return True


def _mixed_product(a: Tensor, b: Tensor, out: Optional[Tensor] = None) -> Tensor:
    return torch.bmm(a, b, out_dtype=torch.float32, out=out)


def product(a: Tensor, b: Tensor, half: Half = None, rounded: bool = False) -> Tensor:
    """Multiply (B, heads, l, m) by (B, heads, m, n), both broadcast; either may be without ``B``.

    ``half``, a result of :func:`factor_dtype`, rounds factors to this type, float16 to its range.
    The result is float32, or half if ``rounded``, for products that the caller only rounds.
    """
    if half is None:
        return a @ b
    a, b = _factor(a, half), _factor(b, half)
    multiply, dtype = (torch.bmm, half) if rounded else (_mixed_product, torch.float32)
    batch: Sequence[int] = a.shape[:-2]
    if batch != b.shape[:-2]:  # torch.broadcast_shapes takes a hundred Python calls
        a, b = (x if x.dim() == 4 else x[None] for x in (a, b))
        batch = [m if n == 1 else n for m, n in zip(a.shape[:2], b.shape)]
        a, b = a.expand(*batch, -1, -1), b.expand(*batch, -1, -1)
    # A batch of (B, heads) with two strides would be copied: large tensors go image by image.
    if batch[0] > 1 and (_strided_twice(a) or _strided_twice(b)):
        result = a.new_empty(*batch, a.shape[-2], b.shape[-1], dtype=dtype)
        for x, y, out in zip(a, b, result):
            multiply(x, y, out=out)
        return result
    result = multiply(a.flatten(0, 1), b.flatten(0, 1))
    return result.view(*batch, *result.shape[1:])


def _strided_twice(x: Tensor) -> bool:
    _, heads, rows, columns = x.shape
    return heads * rows * columns > 2**20 and x.stride(0) != heads * x.stride(1)


def _factor(x: Tensor, half: torch.dtype) -> Tensor:
    if x.dtype == half:
        return x
    if half == torch.float16:
        x = x.clamp(-65504, 65504)
    return x.to(half)


def masked_softmax(logits: Tensor, mask: Mask) -> Tensor:
    """Compute a softmax over the last dim with 0 where ``mask`` is True, in rows of these too."""
    if mask is None:
        return logits.softmax(-1)
    weights = logits.masked_fill(mask, torch.finfo(logits.dtype).min).softmax(-1)
    return weights.masked_fill(mask, 0)


def zero_padding(x: Tensor, mask: Mask) -> Tensor:
    """Return x, (B, N, C) or (B, heads, N, d), with zeros where ``mask`` (B, N) is True."""
    if mask is None:
        return x
    return x.masked_fill(mask[:, None, :, None] if x.dim() == 4 else mask[..., None], 0)


_NO_CONTEXT = nullcontext()


def no_autocast(x: Tensor, tracing: Optional[bool] = None) -> ContextManager:
    """Return a context that disables autocast on the device of ``x``.

    ``tracing`` is the result of :func:`is_tracing`, if the caller knows it.

    Example:
        >>> x = torch.ones(2, 2)
        >>> with torch.autocast('cpu', torch.bfloat16), no_autocast(x):
        ...     (x @ x).dtype
        torch.float32
    """
    tracing = is_tracing() if tracing is None else tracing
    if x.is_meta or not (tracing or torch.is_autocast_enabled(x.device.type)):
        return _NO_CONTEXT  # entering autocast takes longer than the sums of a small map
    return torch.autocast(x.device.type, enabled=False)


def multiply(x: Tensor, weight: Tensor) -> Tensor:
    """Multiply (B, heads, N, in) by (out, in) or (heads, out, in), into (B, heads, N, out)."""
    return F.linear(x, weight) if weight.ndim == 2 else x @ weight.transpose(-2, -1)


def needs_gradient(*tensors: Optional[Tensor]) -> bool:
    """Return True if autograd records operations on these tensors."""
    if torch.is_grad_enabled():
        for x in tensors:  # a generator would cost a Python call for each tensor
            if x is not None and x.requires_grad:
                return True
    return False


# Elements that are processed at once: chunks fit the cache of a CPU. On a GPU an operation on a
# chunk takes longer than its launch, and a float32 tensor of a chunk takes 64 MiB. A chunk of tiles
# has more scores, so that its many small products keep several cores busy.
CPU_CHUNK, CPU_TILES = 2**18, 2**20
ACCELERATOR_CHUNK = 2**24


def chunk_budget(device: torch.device, tiles: bool = False) -> int:
    """Return the number of elements in a chunk of tokens, or of tiles."""
    if device.type not in ('cpu', 'meta'):
        return ACCELERATOR_CHUNK
    return CPU_TILES if tiles else CPU_CHUNK


def fits_cache(x: Tensor, width: Optional[int] = None) -> bool:
    """Return True if intermediate tensors (B, heads, N, width) fit the last-level CPU cache.

    The plain formula is the fastest there. Always False on an accelerator, where autograd would
    store these tensors, half types in float32. The width is d of x, (B, heads, N, d), by default.
    """
    batch, heads, num_tokens, dim = x.shape
    return x.device.type == 'cpu' and batch * heads * num_tokens * (width or dim) <= 4 * CPU_CHUNK


def token_chunks(
    x: Tensor, width: Optional[int] = None, tracing: Optional[bool] = None
) -> List[slice]:
    """Return slices of the tokens whose intermediate tensors fit a chunk, see :func:`fits_cache`.

    A single slice covers all tokens if they fit the cache, and while operations are traced or a
    dispatch mode is active. ``tracing`` is the result of :func:`is_tracing`, if it is known.
    """
    tracing = is_tracing() if tracing is None else tracing
    if tracing or fits_cache(x, width) or has_dispatch_mode():
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
    """Write a chunk into ``out``, None at the first one, and return it; copy no single chunk."""
    if chunk.start is None:
        return part.to(like.dtype)
    out = torch.empty_like(like) if out is None else out
    out[:, :, chunk] = part
    return out


def token_major(x: Tensor, dim: Optional[int] = None, dtype: Half = None) -> Tensor:
    """Return an uninitialised (B, heads, N, dim) tensor with the memory layout (B, N, heads, dim).

    The output projection reads that layout. ``dim`` and ``dtype`` are those of x by default.
    """
    batch, heads, num_tokens, width = x.shape
    width = width if dim is None else dim
    strides = num_tokens * heads * width, width, heads * width, 1
    return x.new_empty_strided((batch, heads, num_tokens, width), strides, dtype=dtype)


def active_tracer() -> Optional[str]:
    """Return the active tracer in words, or None; torch.compile is none, it accepts kernels."""
    if is_exporting():
        return 'the model is being exported'
    if torch._C._are_functorch_transforms_active():
        return 'a transform of torch.func is running'
    if not torch.compiler.is_compiling() and in_forward_ad():
        return 'forward-mode derivatives are computed'
    return None


def has_dispatch_mode() -> bool:
    """Return True if a TorchDispatchMode is active, such as fake tensors or a FLOP counter."""
    return torch._C._len_torch_dispatch_stack() > 0


def in_forward_ad() -> bool:
    """Return True inside ``torch.autograd.forward_ad.dual_level``."""
    return torch.autograd.forward_ad._current_level >= 0


def constant(
    build: Callable[..., Tensor], device: torch.device, *args: Any, tracing: Optional[bool] = None
) -> Tensor:
    """Return ``build(*args, device)``, from a cache except while operations are recorded.

    Building a table of a few numbers takes several kernels, in every layer and step. Arguments are
    hashable. Callers must not change the result. Each CUDA stream has its own. The cache keeps at
    least the last 16 results, up to 256 of together 64 MiB, and those that CUDA graphs read.
    """
    tracing = is_tracing() if tracing is None else tracing
    if tracing or has_dispatch_mode() or device.type == 'meta':
        return build(*args, device)
    stream, capturing = 0, False
    if device.type == 'cuda':
        if device.index is None:
            device = torch.device('cuda', torch.cuda.current_device())
        # A stream does not wait for what another one writes; a capture begins when all is written.
        stream = torch._C._cuda_getCurrentRawStream(device.index)
        capturing = torch.cuda.is_current_stream_capturing()
    key = (build, device, *args, stream)
    found = _CONSTANTS.get(key)
    if found is None and capturing:
        found = next((x for other, x in [*_CONSTANTS.items()] if other[:-1] == key[:-1]), None)
    if found is None:
        if capturing:
            return build(*args, device)  # memory of the CUDA graph, which must not be kept
        # Outside of inference mode: training may use the table later.
        with torch.inference_mode(False), torch.no_grad():
            found = build(*args, device)
        with _LOCK:
            _CONSTANTS[key] = found
            while len(_CONSTANTS) > _MOST_CONSTANTS or (
                len(_CONSTANTS) > 16 and sum(x.nbytes for x in _CONSTANTS.values()) > _MOST_BYTES
            ):
                _CONSTANTS.pop(next(iter(_CONSTANTS)))  # the oldest one
    elif capturing:
        _CAPTURED[id(found)] = found  # the CUDA graph reads this memory at every replay
    return found


_CONSTANTS: Dict[tuple, Tensor] = {}
_CAPTURED: Dict[int, Tensor] = {}
_MOST_CONSTANTS, _MOST_BYTES, _LOCK = 256, 2**26, threading.Lock()


def is_tracing() -> bool:
    """Return True while operations are traced: by torch.compile, an export or torch.func.

    Traced code uses plain operations on whole tensors: a compiler fuses them, ONNX has no others.
    """
    # The compiler first: that of torch 2.4 cannot trace the other checks.
    return (
        torch.compiler.is_dynamo_compiling()
        or torch.compiler._is_compiling_flag  # both are is_compiling(), in fewer Python calls
        or torch._C._is_tracing()
        or torch._C._are_functorch_transforms_active()
    )


def is_exporting() -> bool:
    """Return True inside ``torch.export``, ``torch.jit.trace`` or an ONNX export.

    Exported code must not write into a slice in place: inside an ``autograd.Function`` ONNX export
    by tracing drops such writes silently.
    """
    if not torch.compiler.is_compiling():  # first, as in is_tracing()
        return torch._C._is_tracing()
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
    """Return True inside ``torch.export(strict=True)``, which shows symbols as plain integers."""
    return torch.compiler.is_dynamo_compiling() and _EXPORTING == '_is_exporting_flag'
