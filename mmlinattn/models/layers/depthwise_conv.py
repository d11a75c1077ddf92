"""Depth-wise convolutions of tokens."""

import functools
from typing import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...ops.common.numerics import has_dispatch_mode
from .linear_projection import is_unmodified
from .token_layout import map_to_tokens, tokens_to_map


def add_depthwise(x: Tensor, conv: nn.Conv2d, hw_shape: Sequence[int]) -> Tensor:
    """Compute ``x + conv(x)`` for a depth-wise convolution that keeps the size of the map.

    In float32 on a CPU the residual is added to the kernel, as 1 at its centre, which saves one
    pass over the tokens. Half types and TF32 would round the kernel next to that 1, and an
    exported graph would no longer show the residual.

    Args:
        x: tokens (B, N, C), row-major over the map.
        conv: convolution of C channels in C groups, with odd kernel sizes.
        hw_shape: (H, W) with H * W == N.

    Example:
        >>> x, conv = torch.randn(2, 12, 8), nn.Conv2d(8, 8, 3, padding=1, groups=8)
        >>> expected = x + map_to_tokens(conv(tokens_to_map(x, (3, 4))))
        >>> torch.testing.assert_close(add_depthwise(x, conv, (3, 4)), expected)
    """
    tokens = tokens_to_map(x, hw_shape)
    if not _can_fold_residual(x, conv):
        # Not in place: under autocast the convolution is in half precision, x may be float32.
        return x + map_to_tokens(conv(tokens))
    weight = conv.weight + _identity_kernel(*conv.kernel_size)
    return map_to_tokens(F.conv2d(tokens, weight, conv.bias, 1, conv.padding, 1, conv.groups))


@functools.cache
def _identity_kernel(height: int, width: int) -> Tensor:
    """Return a float32 kernel (height, width) with 1 at its centre and 0 elsewhere."""
    with torch.inference_mode(False):  # training may use it later
        kernel = torch.zeros(height, width, dtype=torch.float32, device='cpu')
        kernel[height // 2, width // 2].fill_(1)
        return kernel


def _can_fold_residual(x: Tensor, conv: nn.Module) -> bool:
    return (
        x.is_cpu
        and type(conv) is nn.Conv2d
        and x.dtype == conv.weight.dtype == torch.float32
        and is_unmodified(conv, nn.Conv2d)
        and not torch.is_autocast_enabled('cpu')
        and not has_dispatch_mode()
    )
