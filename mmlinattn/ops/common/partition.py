"""Facts about GPU and tokens that decide launches: supported sizes, chunks of tokens."""

import functools
from typing import Any, NamedTuple, Optional, Tuple

import torch
from torch import Tensor

from . import launch_table
from .launch_table import Config

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
MIN_DIM, MAX_DIM = 16, 128


class Device(NamedTuple):
    """Facts about a GPU that decide launches.

    Attributes:
        name: name of the GPU.
        architecture: its row of :mod:`.launch_table`.
        processors: number of multiprocessors.
        registers: registers of a multiprocessor.
        shared: shared memory of a multiprocessor, in KiB.
        shared_per_program: shared memory that a program can have, in KiB.
        threads: threads of a multiprocessor.
    """

    name: str
    architecture: str
    processors: int
    registers: int
    shared: int
    shared_per_program: int
    threads: int


@functools.cache
def device_facts(index: int) -> Device:
    """Return the facts about a CUDA device."""
    facts: Any = torch.cuda.get_device_properties(index)  # torch does not declare all of them
    shared = facts.shared_memory_per_block_optin // 1024
    # Consumer GPUs of newer architectures have as little shared memory as sm_80, or less.
    architecture = 'sm_90' if facts.major >= 9 and shared >= 227 else 'sm_80'
    return Device(
        facts.name,
        architecture,
        facts.multi_processor_count,
        facts.regs_per_multiprocessor,
        facts.shared_memory_per_multiprocessor // 1024,
        shared,
        facts.max_threads_per_multi_processor,
    )


class LaunchPlan(NamedTuple):
    """Partition of the tokens between the programs of a kernel.

    Attributes:
        config: tokens per block, warps, stages.
        chunk: tokens per program.
        splits: programs per head.
    """

    config: Config
    chunk: int
    splits: int


def plan(name: str, q: 'Tokens', heads: int, num_tokens: int, num_anchors: int = 0) -> LaunchPlan:
    """Choose chunks so that the programs that fit on the device share the tokens.

    At least four blocks per program, because each program writes its sums. In the interpreter two
    blocks per program, so that tests see several chunks.

    Args:
        name: kernel of :mod:`.launch_table`.
        q: facts about the tokens.
        heads: number of (image, head) pairs.
        num_tokens: N.
        num_anchors: number of anchors, for kernels with anchors.
    """
    config, device = launch_table.INTERPRETED, None
    if q.device_index is not None:
        device = device_facts(q.device_index)
        found = launch_table.find(device.architecture, name, q.dtype, q.dim, num_anchors)
        assert found is not None, name  # unsupported_tokens has looked it up
        config = found
    chunk = 2 * config.block
    if device is not None:
        programs = max(1, _programs(config, device) * device.processors // heads)
        chunk = config.block * max(4, -(-num_tokens // (programs * config.block)))
    return LaunchPlan(config, chunk, -(-num_tokens // chunk))


def _programs(config: Config, device: Device) -> int:
    """Return how many programs of a kernel a multiprocessor runs at once."""
    of_warp = -(-max(config.registers, 16) // 8) * 8 * 32  # registers come in steps of 8
    return max(
        1,
        min(
            device.registers // (of_warp * config.warps),
            device.shared // (config.shared + 1),  # each program reserves another KiB
            device.threads // (32 * config.warps),
        ),
    )


class Tokens(NamedTuple):
    """Facts about q, k or v that decide the launches of a call; a key of caches.

    Attributes:
        batch, heads, num_tokens, dim: its shape.
        strides: its strides.
        dtype: its dtype.
        device_index: index of its CUDA device, None in Triton's interpreter.
    """

    batch: int
    heads: int
    num_tokens: int
    dim: int
    strides: Tuple[int, ...]
    dtype: torch.dtype
    device_index: Optional[int]


class CallKey(NamedTuple):
    """Everything that decides the launches of a call; a key of caches.

    Attributes:
        options: options of the kernels.
        shapes, strides, dtypes: of the tensors, None for those that are not given.
        device_index: index of its CUDA device, None in Triton's interpreter.
        aligned: True if the addresses of all tensors are multiples of 16 bytes.
    """

    options: Any
    shapes: Tuple[Any, ...]
    strides: Tuple[Any, ...]
    dtypes: Tuple[Any, ...]
    device_index: Optional[int]
    aligned: bool

    @classmethod
    def of(cls, options: Any, *tensors: Any) -> 'CallKey':
        """Return the key of tensors or None; the first one is a tensor."""
        shapes = tuple([None if x is None else x.shape for x in tensors])
        strides = tuple([None if x is None else x.stride() for x in tensors])
        dtypes = tuple([None if x is None else x.dtype for x in tensors])
        address = 0
        for x in tensors:
            if x is not None:
                address |= x.data_ptr()
        index = tensors[0].get_device()
        index = None if index < 0 else index
        return cls(options, shapes, strides, dtypes, index, not address & 15)

    def tokens(self, place: int) -> Tokens:
        """Return the facts about tensor ``place``, (B, heads, N, d)."""
        batch, heads, num_tokens, dim = self.shapes[place]
        strides = self.strides[place]
        return Tokens(batch, heads, num_tokens, dim, strides, self.dtypes[0], self.device_index)


def token_strides(x: Tokens) -> Tuple[int, int, int, int]:
    """Return the strides of a new tensor of :func:`.numerics.token_major`."""
    width = x.heads * x.dim
    return x.num_tokens * width, x.dim, width, 1


@torch.compiler.assume_constant_result
def _unsupported(*args: Any) -> Optional[str]:
    return _find_unsupported(*args)


def unsupported_tokens(
    q: Tensor, value_dim: int, kernels: Tuple[str, ...], num_anchors: int = 0
) -> Optional[str]:
    """Return why kernels cannot serve these tokens, or None if they can.

    Args:
        q: queries (B, heads, N, d).
        value_dim: channels per head of the values.
        kernels: names in :mod:`.launch_table`.
        num_anchors: number of anchors, for kernels with anchors.
    """
    return _unsupported(q.get_device(), q.dtype, q.shape[3], value_dim, kernels, num_anchors)


@functools.cache
def _find_unsupported(
    index: int,
    dtype: torch.dtype,
    dim: int,
    value_dim: int,
    kernels: Tuple[str, ...],
    num_anchors: int,
) -> Optional[str]:
    if dtype not in DTYPES:
        return f'kernels support float16, bfloat16 and float32, got {dtype}'
    if not MIN_DIM <= dim <= MAX_DIM:
        return f'kernels support head dims {MIN_DIM} to {MAX_DIM}, got {dim}'
    if value_dim != dim:
        return f'kernels need values as wide as keys, got {value_dim} and {dim}'
    if index < 0:
        return None
    device = device_facts(index)
    for name in kernels:
        config = launch_table.find(device.architecture, name, dtype, dim, num_anchors)
        if config is None:
            size = f'head dim {dim}' + f' and {num_anchors} anchors' * bool(num_anchors)
            return f'{name} has no configuration for {device.name}, {dtype}, {size}'
        if config.shared > device.shared_per_program:
            return (
                f'{name} needs {config.shared} KiB of shared memory, {device.name} has '
                f'{device.shared_per_program}'
            )
    return None
