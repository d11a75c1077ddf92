"""Attention under test, and the list of rules that it is checked against."""

import copy
from functools import cached_property
from typing import Tuple, Type, cast

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..models.layers import AttentionInfo, AttnCfg, BaseAttention, build_attention
from .rules import Case, RuleBroken, Rules, require

ATTENTION_RULES = Rules()
CHANNELS, HEADS = 32, 2
HALF_MAP, MEDIUM_MAP = (24, 48), (48, 48)
LARGE_MAP = (256, 512)  # an image of 2048 pixels width and 1024 height at stride 4
BUILT, CALLED = ('constructor',), ('constructor', 'shape_and_dtype')


class AttentionCase(Case):
    """Attention under test: a layer in float64 and evaluation mode, and its inputs.

    Parameters that start as zeros, such as learnt positions or gates, get small random values, so
    that the rules see them.

    Args:
        attn_cfg: class, name or config of the attention.
        hw_shape: (H, W) of the map, at least 3 x 3.
    """

    def __init__(self, attn_cfg: AttnCfg, hw_shape: Tuple[int, int]) -> None:
        self.attn_cfg, self.hw_shape = attn_cfg, hw_shape
        options = dict(attn_cfg) if isinstance(attn_cfg, dict) else dict(type=attn_cfg)
        kind = options.pop('type')
        self.name = kind if isinstance(kind, str) else kind.__name__
        if options:
            self.name += f'({", ".join(f"{k}={v!r}" for k, v in options.items())})'

    def build(self) -> BaseAttention:
        attn = build_attention(self.attn_cfg, CHANNELS, HEADS).double().eval()
        for parameter in attn.parameters():
            if not parameter.any():
                nn.init.normal_(parameter, std=0.1)
        return attn

    @cached_property
    def attn(self) -> BaseAttention:
        return self.build()

    def clone(self, dtype: torch.dtype) -> BaseAttention:
        """Return a copy of the layer that a rule may change."""
        return copy.deepcopy(self.attn).to(dtype)

    @property
    def info(self) -> AttentionInfo:
        found = type(self.attn).info
        require(isinstance(found, AttentionInfo), f'{type(self.attn).__name__}.info is {found!r}')
        return cast(AttentionInfo, found)

    def quadratic(self) -> bool:
        """Return True if a call makes a tensor of N x N elements that grows faster than N.

        Operations are recorded; an attention that has another path while that is so is measured
        there.
        """
        attn, sizes = self.clone(torch.float32), []
        for height, width in (HALF_MAP, MEDIUM_MAP):
            x = self.tokens(height * width, batch=1).float()
            with torch.no_grad(), LargestTensor() as largest:
                self.run(x, (height, width), attn)
            sizes.append(largest.numel)
        return sizes[1] >= (MEDIUM_MAP[0] * MEDIUM_MAP[1]) ** 2 and sizes[1] >= 3 * sizes[0]

    @property
    def num_tokens(self) -> int:
        return self.hw_shape[0] * self.hw_shape[1]

    def tokens(self, n: int = 0, batch: int = 2) -> Tensor:
        """Return random tokens (B, n, C); as many as the map has if ``n`` is 0."""
        return torch.randn(batch, n or self.num_tokens, self.attn.embed_dims, dtype=torch.float64)

    def padding(self) -> Tensor:
        """Return a mask (2, N): the lower rows of image 0, the right columns of image 1."""
        height, width = self.hw_shape
        mask = torch.zeros(2, height, width, dtype=torch.bool)
        mask[0, height // 2 + 1 :] = True
        mask[1, :, 2 * width // 3 :] = True
        return mask.flatten(1)

    def run(self, x: Tensor, hw_shape=None, attn=None, note: str = '', **kwargs) -> Tensor:
        """Call the layer, and describe the input for the report."""
        hw_shape = hw_shape or self.hw_shape
        parts = [f'x {_summary(x)}', f'hw_shape={hw_shape}']
        parts += [f'{name}={_summary(value)}' for name, value in kwargs.items()]
        self.given = ', '.join([*parts, note] if note else parts)
        return (self.attn if attn is None else attn)(x, hw_shape, **kwargs)

    def raises(self, kind: Type[Exception], text: str, x: Tensor, hw_shape=None, **kwargs) -> None:
        """Raise :class:`RuleBroken` unless the call raises such an error with ``text`` in it."""
        try:
            self.run(x, hw_shape, **kwargs)
        except kind as error:
            require(text in str(error), f'the message does not contain {text!r}: {error}')
        except Exception as error:
            wrong = f'{type(error).__name__} in place of {kind.__name__}: {error}'
            raise RuleBroken(wrong) from error
        else:
            raise RuleBroken(f'no error; expected a {kind.__name__} with {text!r}')


class LargestTensor(TorchDispatchMode):
    """Number of elements in memory of the largest tensor that an operation returns."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        sizes = [t.untyped_storage().nbytes() // t.element_size() for t in tensors]
        self.numel = max([self.numel, *sizes])
        return out


def _summary(value: object) -> str:
    if not isinstance(value, Tensor):
        return repr(value)
    text = f'{tuple(value.shape)} {str(value.dtype).removeprefix("torch.")}'
    if value.dtype != torch.bool:
        return text
    return f'{text}, padded tokens per image {value.sum(1).tolist()}'


rule = ATTENTION_RULES.add
