"""Position encodings for linear attention, which has no N x N matrix to add a bias to.

A position changes queries and keys before the feature map, changes their features after it, or
rotates the features of the numerator inside the operator.
"""

import math
from typing import Optional, Sequence, Tuple, Union

import torch
import torch.nn.functional as F
from mmengine.model import BaseModule
from mmengine.registry import MODELS
from torch import Tensor, nn

from ...ops.common.checks import check_sides
from ...ops.common.numerics import accumulation_dtype, may_be_symbolic, no_autocast
from ...ops.common.rotary import Rotary
from ...utils import check_integer
from .build import build_part
from .token_layout import require_static_size

HW = Tuple[int, int]


class LinearPosition(BaseModule):
    """Base class of all positions, which changes nothing.

    Args:
        head_dim: channels d per head.
        num_heads: heads.
    """

    supports_extra_tokens = False  # tokens without a position, such as a class token
    supports_onnx = True  # also in graphs with dynamic sizes

    def __init__(self, head_dim: int, num_heads: int) -> None:
        super().__init__()
        self.head_dim = self.out_dims = head_dim  # out_dims enter the feature map
        self.num_heads = num_heads

    def check_export(self, hw_shape: HW) -> None:
        """Raise ValueError during an export that does not support this position."""
        if self.supports_onnx:
            return
        name, reason = f'position {type(self).__name__}', 'it draws random numbers per token'
        require_static_size(name, hw_shape, reason)
        if torch.onnx.is_in_onnx_export():
            raise ValueError(
                f'{name} cannot be exported to ONNX, which lacks the functions of its '
                'random numbers. Use torch.export at a fixed size, or '
                "position='RotaryPosition', which ONNX supports"
            )

    def before_feature_map(self, q: Tensor, k: Tensor, hw_shape: HW) -> Tuple[Tensor, Tensor]:
        """Encode q and k (B, heads, N, d) as (B, heads, N, out_dims) before the feature map."""
        return q, k

    def after_feature_map(self, q: Tensor, k: Tensor, hw_shape: HW) -> Tuple[Tensor, Tensor]:
        """Encode the features (B, heads, N, m) of q and k; shapes do not change."""
        return q, k

    def rotary(self, hw_shape: HW, num_features: int, num_extra: int) -> Optional[Rotary]:
        """Return the rotation of the features of the numerator (not of extra tokens), or None."""
        return None


@MODELS.register_module()
class RotaryPosition(LinearPosition):
    """2D rotary position after the feature map, in the numerator only.

    RoFormer's linear attention (Su et al., 2021) and RALA use it. The number of features must be a
    multiple of 4. Extra tokens are not rotated.

    Example:
        >>> RotaryPosition(32, 6).rotary((12, 20), 64, 0).hw_shape
        (12, 20)
    """

    supports_extra_tokens = True

    def rotary(self, hw_shape: HW, num_features: int, num_extra: int) -> Rotary:
        return Rotary(hw_shape, num_features, num_extra_tokens=num_extra)


@MODELS.register_module()
class LearnedKeyPosition(LinearPosition):
    """Learnt position that is added to the keys before the feature map, as in "FLatten Transformer:
    Vision Transformer using Focused Linear Attention" (Han et al., ICCV 2023, released code).

    Positions are resized to maps of another size, padding included, by bicubic interpolation.

    Args:
        map_size: side, or (H, W), of the map that the positions are for, positive integers.

    Example:
        >>> position = LearnedKeyPosition(8, 2, map_size=(2, 3))
        >>> position.embedding.shape
        torch.Size([1, 2, 6, 8])
    """

    def __init__(self, head_dim: int, num_heads: int, map_size: Union[int, Sequence[int]]) -> None:
        super().__init__(head_dim, num_heads)
        self.map_size = check_sides(map_size, 'map_size')
        self.embedding = nn.Parameter(torch.zeros(1, num_heads, math.prod(self.map_size), head_dim))

    def before_feature_map(self, q: Tensor, k: Tensor, hw_shape: HW) -> Tuple[Tensor, Tensor]:
        embedding = self.embedding
        if may_be_symbolic(*hw_shape) or tuple(hw_shape) != self.map_size:
            maps = embedding[0].unflatten(1, self.map_size).movedim(-1, 1)  # [h, d, H, W]
            maps = maps.to(accumulation_dtype(maps.dtype))
            maps = F.interpolate(maps, size=tuple(hw_shape), mode='bicubic')
            embedding = maps.flatten(2).mT[None]
        return q, k + embedding.to(k.dtype)


@MODELS.register_module()
class PermutationPosition(LinearPosition):
    """Position of "PermuteFormer: Efficient Relative Position Encoding for Long Sequences" (Chen,
    EMNLP 2021), in 2D.

    Each head has two permutations of features. For the token in row y and column x, the first half
    of the features is permuted y times and the second half x times. Products of features then
    depend only on the offset between query and key. Features stay positive.

    Args:
        seed: seed of the permutations, which are not saved with the weights.

    Example:
        >>> q = torch.rand(1, 2, 6, 8)
        >>> permuted, _ = PermutationPosition(8, 2).after_feature_map(q, q, (2, 3))
        >>> torch.equal(permuted.sort(-1)[0], q.sort(-1)[0])
        True
    """

    supports_onnx = False

    def __init__(self, head_dim: int, num_heads: int, seed: int = 0) -> None:
        super().__init__(head_dim, num_heads)
        self.seed = seed

    def after_feature_map(self, q: Tensor, k: Tensor, hw_shape: HW) -> Tuple[Tensor, Tensor]:
        index = self.feature_index(hw_shape, q.shape[-1], q.device).expand(q.shape)
        return q.gather(-1, index), k.gather(-1, index)

    def feature_index(self, hw_shape: HW, num_features: int, device: torch.device) -> Tensor:
        """Return the index of the source of each permuted feature, (heads, N, m)."""
        height, width = hw_shape
        half = num_features // 2
        heads = torch.arange(self.num_heads, device=device)[:, None]
        features = torch.arange(num_features, device=device)
        keys = counter_based_normal(torch.full((), self.seed, device=device), heads, features)
        first, second = keys[:, :half].argsort(-1), keys[:, half:].argsort(-1)
        rows = _permutation_powers(first, height)[:, :, None].expand(-1, -1, width, -1)
        columns = half + _permutation_powers(second, width)[:, None].expand(-1, height, -1, -1)
        return torch.cat([rows, columns], -1).flatten(1, 2)


def _permutation_powers(permutation: Tensor, count: int) -> Tensor:
    """Apply the permutations (heads, m) 0 to count - 1 times; return (heads, count, m)."""
    table = torch.arange(permutation.shape[-1], device=permutation.device)
    table = table.expand(permutation.shape)[:, None]
    while table.shape[1] < count:  # the table doubles: permutation has its length as exponent
        table = torch.cat([table, permutation[:, None].expand_as(table).gather(-1, table)], 1)
        permutation = permutation.gather(-1, permutation)
    return table[:, :count]


class StochasticPosition(LinearPosition):
    """Gated stochastic positional encoding, "Relative Positional Encoding for Transformers with
    Linear Complexity" (Liutkus et al., ICML 2021).

    Channel d of the queries is multiplied by R realisations of a random process over the positions.
    The keys are multiplied by those of another process. The channels are summed. In expectation::

        q'_i . k'_j = sqrt(R / D) sum_d q_id k_jd (g_d + (1 - g_d) P_d(i - j))

    with a kernel P_d of the distance per channel and head, D channels per head and gates g. Scaling
    and initial values are those of the release (github.com/aliutkus/spe). Each training step draws
    new processes; evaluation uses those of ``seed``. The noise is a function of the absolute
    position, so that a padded map has the same noise.

    Time is O(N d R) per head, times 2 k for k waves or times the taps of a filter; memory O(N d R).

    Args:
        num_realizations: R; d by default.
        seed: seed for evaluation.

    Raises:
        ValueError: ``num_realizations`` is not a positive integer.
    """

    supports_onnx = False

    def __init__(
        self, head_dim: int, num_heads: int, num_realizations: Optional[int] = None, seed: int = 0
    ) -> None:
        super().__init__(head_dim, num_heads)
        self.out_dims = check_integer(
            'num_realizations', head_dim if num_realizations is None else num_realizations
        )
        self.seed = seed
        self.gates = nn.Parameter(torch.randn(num_heads, head_dim, 1))

    def position_codes(self, seed: Tensor, hw_shape: HW, dtype: torch.dtype) -> Sequence[Tensor]:
        """Return the processes of queries and keys, (heads, N, d, R), variance P_d(0)."""
        raise NotImplementedError

    def before_feature_map(self, q: Tensor, k: Tensor, hw_shape: HW) -> Tuple[Tensor, Tensor]:
        dtype = accumulation_dtype(q.dtype)
        if self.training:
            seed = torch.randint(2**31, (), device=q.device)
        else:
            # Not 0, the fixed point of the hash: the first number would be far in the tail.
            seed = torch.full((), self.seed + 1, device=q.device, dtype=torch.long)
        with no_autocast(q):
            codes = self.position_codes(seed, hw_shape, dtype)
            gates = self.gates.to(dtype)[:, None]  # [h, 1, d, 1]
            # Roots of the sigmoid g and of 1 - g, whose gradients are finite for any gate.
            shared, own = ((F.logsigmoid(x) / 2).exp() for x in (gates, -gates))
            # One value for all positions, shared by queries and keys, has a kernel of ones.
            shape = (self.num_heads, 1, self.head_dim, self.out_dims)
            constant = shared * self.noise(seed, 1, shape, dtype)
            codes = [own * code + constant for code in codes]
            scale = (self.out_dims * self.head_dim) ** -0.25
            q, k = (
                scale * torch.einsum('bhnd,hndr->bhnr', x.to(dtype), code)
                for x, code in zip((q, k), codes)
            )
        return q, k

    def noise(self, seed: Tensor, stream: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return standard normal numbers that are independent between streams."""
        index = torch.arange(math.prod(shape), device=seed.device)
        stream_index = torch.full((1,), stream, device=seed.device)
        return counter_based_normal(seed, stream_index, index).view(*shape).to(dtype)


@MODELS.register_module()
class SineSPE(StochasticPosition):
    """Stochastic position with a sum of waves as kernel::

        P_d(y, x) = 1 / (2 K) sum_k l_dk^2 cos(2 pi (f_dk . (y, x)) + t_dk)

    The frequencies f, phases t and gains l are learnt. The release has sequences only. In 2D a
    frequency is two numbers of at most half a wave per token. Every second wave runs backwards
    along the columns, so that waves have all directions. 10 waves add 0.09 M parameters to a
    DeiT-T; the Ripple paper's table 1 has 0.08.

    Args:
        num_sines: number k of waves per channel, a positive integer.
        kwargs: options of :class:`StochasticPosition`.

    Example:
        >>> position = SineSPE(16, 2, num_realizations=24)
        >>> q, k = position.before_feature_map(*torch.randn(2, 1, 2, 6, 16), hw_shape=(2, 3))
        >>> q.shape
        torch.Size([1, 2, 6, 24])
    """

    def __init__(self, head_dim: int, num_heads: int, num_sines: int = 10, **kwargs) -> None:
        super().__init__(head_dim, num_heads, **kwargs)
        shape = (num_heads, head_dim, check_integer('num_sines', num_sines))
        self.frequencies = nn.Parameter(torch.randn(*shape, 2) - 4)  # long waves
        self.phases = nn.Parameter(torch.randn(shape))
        gains = torch.randn(shape)
        self.gains = nn.Parameter(2 * gains / gains.norm(dim=-1, keepdim=True).sqrt())

    def position_codes(self, seed: Tensor, hw_shape: HW, dtype: torch.dtype) -> Sequence[Tensor]:
        num_sines = self.gains.shape[-1]
        frequency = math.pi * self.frequencies.to(dtype).sigmoid()
        down, across = frequency[:, None, None].unbind(-1)  # [h, 1, 1, d, K]
        across = across * (1 - 2 * (torch.arange(num_sines, device=seed.device) % 2))
        y, x = (torch.arange(size, device=seed.device, dtype=dtype) for size in hw_shape)
        angle = (y[:, None, None, None] * down + x[:, None, None] * across).flatten(1, 2)
        gains = ((2 * num_sines) ** -0.5 * F.softplus(self.gains.to(dtype)))[:, None]
        shape = (self.num_heads, self.head_dim, 2 * num_sines, self.out_dims)
        noise = self.noise(seed, 0, shape, dtype)
        shifted = angle + self.phases.to(dtype)[:, None]
        waves = (torch.cat([gains * a.cos(), gains * a.sin()], -1) for a in (shifted, angle))
        return [torch.einsum('hndk,hdkr->hndr', wave, noise) for wave in waves]


@MODELS.register_module()
class ConvSPE(StochasticPosition):
    """Stochastic position with learnt filters as kernel.

    2D noise is convolved with one filter per channel for the queries and another for the keys. P_d
    is the correlation of the two filters, and 0 beyond their size.

    Args:
        kernel_size: size of the filters, (rows, columns) or one number for both, positive
            integers. The default of 200 taps adds 0.92 M parameters to a DeiT-T. The Ripple
            paper's table 1 has 0.93 and does not state the filter size.
        kwargs: options of :class:`StochasticPosition`.

    Example:
        >>> position = ConvSPE(16, 2, kernel_size=3)
        >>> q, k = position.before_feature_map(*torch.randn(2, 1, 2, 6, 16), hw_shape=(2, 3))
        >>> q.shape
        torch.Size([1, 2, 6, 16])
    """

    def __init__(
        self, head_dim: int, num_heads: int, kernel_size: Union[int, HW] = (10, 20), **kwargs
    ) -> None:
        super().__init__(head_dim, num_heads, **kwargs)
        self.kernel_size = sides = check_sides(kernel_size, 'kernel_size')
        channels, taps = num_heads * head_dim, math.prod(sides)
        filters = torch.rand(2 * channels, 1, *sides)  # of queries, then of keys
        self.filters = nn.Parameter((taps / 2) ** -0.5 * filters)

    def position_codes(self, seed: Tensor, hw_shape: HW, dtype: torch.dtype) -> Sequence[Tensor]:
        channels = self.num_heads * self.head_dim
        # The noise of the map plus the border of the filters, indexed by absolute position.
        y, x = (
            torch.arange(-(side // 2), size + side - 1 - side // 2, device=seed.device)
            for side, size in zip(self.kernel_size, hw_shape)
        )
        channel = torch.arange(self.out_dims * channels, device=seed.device)
        # [H + height - 1, W + width - 1, R C]
        noise = counter_based_normal(seed, y[:, None, None], x[:, None], channel).to(dtype)
        noise = noise.unflatten(-1, (self.out_dims, channels)).permute(2, 3, 0, 1)
        codes = (F.conv2d(noise, f, groups=channels) for f in self.filters.to(dtype).chunk(2))
        heads = (self.num_heads, self.head_dim)
        return [code.unflatten(1, heads).flatten(3).permute(1, 3, 2, 0) for code in codes]


def counter_based_normal(seed: Tensor, *coordinates: Tensor) -> Tensor:
    """Compute standard normal float32 numbers from a seed and integer coordinates.

    Coordinates are broadcast. The number at a coordinate is the same on every device, in compiled
    graphs and for every map size. Random generators guarantee none of these.
    """
    bits = _hash32(seed)
    for coordinate in coordinates:
        bits = _hash32(bits ^ (coordinate & 0xFFFFFFFF))
    # The middle of each of 2^23 steps: float32 represents it exactly, and it is never -1 or 1.
    uniform = ((bits >> 9).to(torch.float32) + 0.5) * 2**-22 - 1
    return math.sqrt(2) * torch.erfinv(uniform)


def _hash32(bits: Tensor) -> Tensor:
    """Hash 32-bit numbers by the "lowbias32" permutation."""
    bits = ((bits ^ (bits >> 16)) * 0x7FEB352D) & 0xFFFFFFFF
    bits = ((bits ^ (bits >> 15)) * 0x846CA68B) & 0xFFFFFFFF
    return bits ^ (bits >> 16)


def build_position(
    cfg: Union[str, dict, None], head_dim: int, num_heads: int
) -> Optional[LinearPosition]:
    """Build a position for an attention from its name or config, or return None for None.

    Raises:
        ValueError: the position is unknown; the message names the registered ones.

    Example:
        >>> type(build_position('RotaryPosition', 32, 6)).__name__
        'RotaryPosition'
    """
    if cfg is None:
        return None
    return build_part('position', LinearPosition, cfg, head_dim=head_dim, num_heads=num_heads)
