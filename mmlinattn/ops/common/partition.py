"""Facts about GPU and tokens that decide launches, such as the chunks of tokens."""

from typing import Any, NamedTuple, Optional, Sequence, Tuple

import torch

from . import launch_table
from .launch import Launch
from .launch_table import Config


def split_tokens(name: str, x: 'Tokens', num_anchors: int = 0) -> Tuple[Config, int, int]:
    """Return the configuration of a kernel, the tokens of a program, and the programs of a head.

    The programs that fit on the device share the tokens, at least four blocks each, because each
    writes its sums. In the interpreter it is two blocks, so that tests see several chunks.
    """
    if x.device_index is None:
        config = launch_table.INTERPRETED
        chunk = 2 * config.block
    else:
        device = torch.cuda.get_device_properties(x.device_index)
        found = launch_table.find(
            launch_table.architecture(device), name, x.dtype, x.dim, num_anchors
        )
        assert found is not None, name  # unsupported_tokens has looked it up
        config = found
        programs = _programs(config, device) * device.multi_processor_count
        programs = max(1, programs // (x.batch * x.heads))
        chunk = config.block * max(4, -(-x.num_tokens // (programs * config.block)))
    return config, chunk, -(-x.num_tokens // chunk)


def _programs(config: Config, device: Any) -> int:
    """Return how many programs of a kernel a multiprocessor runs at once."""
    of_warp = -(-max(config.registers, 16) // 8) * 8 * 32  # registers come in steps of 8
    shared = device.shared_memory_per_multiprocessor // 1024
    fit = min(
        device.regs_per_multiprocessor // (of_warp * config.warps),
        shared // (config.shared + 1),  # each program reserves another KiB
        device.max_threads_per_multi_processor // (32 * config.warps),
    )
    return max(fit, 1)


class Tokens(NamedTuple):
    """Facts about q, k or v that decide the launches of a call."""

    batch: int  # of packed images their number
    heads: int
    num_tokens: int  # of packed images those of the longest
    dim: int
    strides: Tuple[int, ...]
    dtype: torch.dtype
    device_index: Optional[int]  # None in Triton's interpreter


class CallKey(NamedTuple):
    """Everything that decides the launches of a call; a key of caches."""

    options: Any
    shapes: Tuple[Any, ...]  # of the tensors, None for those that are not given
    strides: Tuple[Any, ...]
    dtypes: Tuple[Any, ...]
    device_index: Optional[int]  # None in Triton's interpreter
    aligned: bool  # the addresses of all tensors are multiples of 16 bytes

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

    def over_tokens(
        self, name: str, kernel: Any, x: Tokens, strides: Sequence[int], *sizes: float,
        after: Sequence[float] = (), num_anchors: int = 0, **constants: Any,
    ) -> Launch:  # fmt: skip
        """Return the launch of one program per head and chunk of the tokens ``x``.

        After its tensors the kernel has ``strides``, the number of heads and of tokens, ``sizes``,
        the tokens of a chunk, and ``after``. ``constants`` are its ``constexpr`` parameters besides
        D, BD and BN.
        """
        config, chunk, splits = split_tokens(name, x, num_anchors)
        constants.update(D=x.dim, BD=padded(x.dim), BN=config.block)
        arguments = (*strides, x.heads, x.num_tokens, *sizes, chunk, *after)
        grid = x.batch * x.heads, splits
        return Launch(kernel, grid, arguments, constants, config, self.aligned)


def padded(size: int) -> int:
    """Return the padded size of a dimension in a kernel: the next power of 2, at least 16."""
    return max(16, 1 << (size - 1).bit_length())


def token_strides(x: Tokens) -> Tuple[int, int, int, int]:
    """Return the strides of a new tensor of :func:`.numerics.token_major`."""
    width = x.heads * x.dim
    return x.num_tokens * width, x.dim, width, 1
