"""Position for linear attention, whose kernel has no N x N matrix to add a bias to.

A position changes queries and keys before the feature map, their features after it, or says how
the operator turns the features of the numerator.
"""

import math
from typing import Optional, Sequence, Tuple, Union

import torch
import torch.nn.functional as F
from mmengine.model import BaseModule
from mmengine.registry import MODELS
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ...ops.common.numerics import (
    accumulation_dtype,
    chunk_budget,
    has_dispatch_mode,
    is_tracing,
    needs_gradient,
    no_autocast,
)
from ...ops.common.rotary import Rotary
from .base import need_known_size
from .build import registered
from .feature_maps import positive

HW = Tuple[int, int]


class LinearPosition(BaseModule):
    """Leaves everything as it is; a subclass changes what it is about.

    Args:
        head_dim: channels d of a head.
        num_heads: heads.

    Attributes:
        out_dims: channels a head that reach the feature map.
        takes_extra_tokens: whether tokens without a place, such as a class token, have a meaning.
        exports: whether it goes to ONNX, and to graphs for maps of any size.
    """

    takes_extra_tokens = False
    exports = True

    def __init__(self, head_dim: int, num_heads: int) -> None:
        super().__init__()
        self.head_dim = self.out_dims = head_dim
        self.num_heads = num_heads

    def check_export(self, hw_shape: HW) -> None:
        """Raise ValueError where a graph is recorded that it cannot be part of."""
        if self.exports:
            return
        name, why = f'position {type(self).__name__}', 'it is drawn place by place'
        need_known_size(name, hw_shape, why)
        if torch.onnx.is_in_onnx_export():
            raise ValueError(
                f'{name} cannot be exported to ONNX, which has none of the functions that its '
                'random numbers need; torch.export at a fixed size takes it, and '
                "position='RotaryPosition' goes to ONNX"
            )

    def before(self, q: Tensor, k: Tensor, hw_shape: HW) -> Tuple[Tensor, Tensor]:
        """(B, heads, N, d) each, to (B, heads, N, out_dims), before the feature map."""
        return q, k

    def after(self, q: Tensor, k: Tensor, hw_shape: HW) -> Tuple[Tensor, Tensor]:
        """Features (B, heads, N, m) each, to the same shape."""
        return q, k

    def rotary(self, hw_shape: HW, num_features: int, num_extra: int) -> Optional[Rotary]:
        """How the operator turns the features of the numerator; ``num_extra`` tokens come first
        and are not turned."""
        return None


@MODELS.register_module()
class RotaryPosition(LinearPosition):
    """2D rotary position after the feature map, in the numerator alone, as in RoFormer's linear
    attention (Su et al., 2021) and RALA. The number of features must be a multiple of 4. Extra
    tokens are not turned."""

    takes_extra_tokens = True

    def rotary(self, hw_shape: HW, num_features: int, num_extra: int) -> Rotary:
        return Rotary(hw_shape, num_features, num_extra_tokens=num_extra)


@MODELS.register_module()
class PermutationPosition(LinearPosition):
    """Permuteformer's position ("PermuteFormer: Efficient Relative Position Encoding for Long
    Sequences", Chen, EMNLP 2021), in 2D: of the features of the token in row y and column x, the
    first half is permuted y times and the second x times, by permutations of each head.

    Products of features then depend on the way from query to key alone. Features stay positive.

    Args:
        head_dim, num_heads: filled in by the attention.
        seed: the permutations are those of this seed; they are not saved with the weights.

    Example:
        >>> q = torch.rand(1, 2, 6, 8)
        >>> permuted, _ = PermutationPosition(8, 2).after(q, q, (2, 3))
        >>> torch.equal(permuted.sort(-1)[0], q.sort(-1)[0])
        True
    """

    exports = False

    def __init__(self, head_dim: int, num_heads: int, seed: int = 0) -> None:
        super().__init__(head_dim, num_heads)
        self.seed = seed

    def after(self, q: Tensor, k: Tensor, hw_shape: HW) -> Tuple[Tensor, Tensor]:
        order = self.order(hw_shape, q.shape[-1], q.device).expand(q.shape)
        return q.gather(-1, order), k.gather(-1, order)

    def order(self, hw_shape: HW, num_features: int, device: torch.device) -> Tensor:
        """Which feature each place of a token gets, (heads, N, m)."""
        height, width = hw_shape
        half = num_features // 2
        heads = torch.arange(self.num_heads, device=device)[:, None]
        features = torch.arange(num_features, device=device)
        keys = normal(torch.full((), self.seed, device=device), heads, features)
        first, second = keys[:, :half].argsort(-1), keys[:, half:].argsort(-1)
        rows = _powers(first, height)[:, :, None].expand(-1, -1, width, -1)
        columns = half + _powers(second, width)[:, None].expand(-1, height, -1, -1)
        return torch.cat([rows, columns], -1).flatten(1, 2)


def _powers(permutation: Tensor, count: int) -> Tensor:
    """The permutations (heads, m), applied 0 to count - 1 times: (heads, count, m)."""
    table = torch.arange(permutation.shape[-1], device=permutation.device)
    table = table.expand(permutation.shape)[:, None]
    while table.shape[1] < count:  # permutation is applied as often as the table is long
        table = torch.cat([table, permutation[:, None].expand_as(table).gather(-1, table)], 1)
        permutation = permutation.gather(-1, permutation)
    return table[:, :count]


class StochasticPosition(LinearPosition):
    """Stochastic positional encoding (Liutkus et al., "Relative Positional Encoding for
    Transformers with Linear Complexity", ICML 2021), gated: channel d of the queries is multiplied
    by R realisations of a random process over the positions, that of the keys by another one, and
    the channels are summed. In expectation::

        q'_i . k'_j = sum_d q_id k_jd (g_d + (1 - g_d) P_d(i - j))

    with a kernel P_d of the distance for each channel of each head. The process is drawn again in
    each training step; in evaluation it is that of ``seed``. Noise belongs to places of an endless
    plane, so that an image has the same on a larger, padded map.

    Time O(N d R) a head, times 2 k for k waves, or the taps of a filter; memory O(N R): processes
    exist for a band of rows at a time, and again in the backward pass.

    Args:
        head_dim, num_heads: filled in by the attention.
        num_realizations: R; d by default.
        gated: False leaves the gates g at 0.
        seed: of the evaluation.

    Raises:
        ValueError: a number of realisations that is not a positive integer.
    """

    exports = False

    def __init__(
        self,
        head_dim: int,
        num_heads: int,
        num_realizations: Optional[int] = None,
        gated: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__(head_dim, num_heads)
        self.out_dims = positive('num_realizations', num_realizations, head_dim)
        self.seed = seed
        self.gates = nn.Parameter(torch.zeros(num_heads, head_dim, 1)) if gated else None

    def codes(
        self, seed: Tensor, rows: range, hw_shape: HW, dtype: torch.dtype
    ) -> Sequence[Tensor]:
        """The processes of queries and keys in these rows, (heads, rows * W, d, R) each, of
        variance ``P_d(0)``."""
        raise NotImplementedError

    def before(self, q: Tensor, k: Tensor, hw_shape: HW) -> Tuple[Tensor, Tensor]:
        dtype, (height, width) = accumulation_dtype(q.dtype), hw_shape
        if self.training:
            seed = torch.randint(2**31, (), device=q.device)
        else:
            seed = torch.full((), self.seed, device=q.device, dtype=torch.long)
        bands = [range(height)]
        if not (is_tracing() or has_dispatch_mode()):
            numbers = self.num_heads * self.head_dim * self.out_dims * width  # of a row
            step = max(1, chunk_budget(q.device, tiles=True) // numbers)
            bands = [range(y, min(y + step, height)) for y in range(0, height, step)]
        again = len(bands) > 1 and needs_gradient(q, k, *self.parameters())
        out = []
        with no_autocast(q):
            for rows in bands:
                tokens = slice(rows.start * width, rows.stop * width)
                band = (q[:, :, tokens].to(dtype), k[:, :, tokens].to(dtype), seed, rows, hw_shape)
                # The noise is a function of the seed: no state of a generator to bring back.
                out.append(
                    checkpoint(self._mix, *band, use_reentrant=False, preserve_rng_state=False)
                    if again
                    else self._mix(*band)
                )
        return tuple(torch.cat(parts, 2) for parts in zip(*out))  # type: ignore[return-value]

    def _mix(self, q: Tensor, k: Tensor, seed: Tensor, rows: range, hw_shape: HW):
        codes = self.codes(seed, rows, hw_shape, q.dtype)
        if self.gates is not None:
            gate = self.gates.to(q.dtype).sigmoid()[:, None]  # [h, 1, d, 1]
            # The same at all positions, for queries and keys: a kernel of ones.
            shape = (self.num_heads, 1, self.head_dim, self.out_dims)
            steady = gate.sqrt() * self.noise(seed, 1, shape, q.dtype)
            codes = [(1 - gate).sqrt() * code + steady for code in codes]
        scale = self.out_dims**-0.5
        return tuple(
            scale * torch.einsum('bhnd,hndr->bhnr', x, code) for x, code in zip((q, k), codes)
        )

    def noise(self, seed: Tensor, stream: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Standard normal numbers, independent of those of other streams."""
        index = torch.arange(math.prod(shape), device=seed.device)
        stream_index = torch.full((1,), stream, device=seed.device)
        return normal(seed, stream_index, index).view(*shape).to(dtype)


@MODELS.register_module()
class SineSPE(StochasticPosition):
    """Stochastic position with a kernel of waves: ``P_d(y, x) = sum_k l_dk^2 cos(2 pi (f_dk . (y,
    x)) + t_dk)``, frequencies f, phases t and gains l learnt.

    In 2D a frequency has two numbers. 10 waves add 0.09 M parameters to a DeiT-T; the Ripple
    paper's table 1 has 0.08.

    Args:
        head_dim, num_heads: filled in by the attention.
        num_sines: waves k of each channel.
        others: see :class:`StochasticPosition`.

    Raises:
        ValueError: a number of waves that is not a positive integer.

    Example:
        >>> position = SineSPE(16, 2, num_realizations=24)
        >>> q, k = position.before(*torch.randn(2, 1, 2, 6, 16), hw_shape=(2, 3))
        >>> q.shape
        torch.Size([1, 2, 6, 24])
    """

    def __init__(self, head_dim: int, num_heads: int, num_sines: int = 10, **kwargs) -> None:
        super().__init__(head_dim, num_heads, **kwargs)
        shape = (num_heads, head_dim, positive('num_sines', num_sines, 1))
        # Long waves of phase 0: products start almost as they are without position.
        self.frequencies = nn.Parameter(0.05 * torch.randn(*shape, 2))
        self.phases = nn.Parameter(torch.zeros(shape))
        self.gains = nn.Parameter(torch.randn(shape))

    def codes(
        self, seed: Tensor, rows: range, hw_shape: HW, dtype: torch.dtype
    ) -> Sequence[Tensor]:
        frequency = math.pi * self.frequencies.to(dtype).tanh()  # at most half a wave a token
        down, across = frequency[:, None, None].unbind(-1)  # [h, 1, 1, d, K]
        y = torch.arange(rows.start, rows.stop, device=seed.device, dtype=dtype)
        x = torch.arange(hw_shape[1], device=seed.device, dtype=dtype)
        angle = (y[:, None, None, None] * down + x[:, None, None] * across).flatten(1, 2)
        gains = F.normalize(F.softplus(self.gains.to(dtype)), dim=-1)[:, None]
        shape = (self.num_heads, self.head_dim, 2 * self.gains.shape[-1], self.out_dims)
        noise = self.noise(seed, 0, shape, dtype)
        turned = angle + self.phases.to(dtype)[:, None]
        waves = (torch.cat([gains * a.cos(), gains * a.sin()], -1) for a in (turned, angle))
        return [torch.einsum('hndk,hdkr->hndr', wave, noise) for wave in waves]


@MODELS.register_module()
class ConvSPE(StochasticPosition):
    """Stochastic position with a kernel of learnt filters: noise on the plane, convolved with a
    filter for each channel of queries and another one of keys. P_d is their correlation and 0
    beyond their size.

    Args:
        head_dim, num_heads: filled in by the attention.
        kernel_size: of the filters, (rows, columns) or one number for both. The default has 200
            taps, which add 0.92 M parameters to a DeiT-T; the Ripple paper's table 1 has 0.93, and
            does not say which filters.
        others: see :class:`StochasticPosition`.

    Raises:
        ValueError: a kernel size that is not one or two positive integers.

    Example:
        >>> position = ConvSPE(16, 2, kernel_size=3)
        >>> q, k = position.before(*torch.randn(2, 1, 2, 6, 16), hw_shape=(2, 3))
        >>> q.shape
        torch.Size([1, 2, 6, 16])
    """

    def __init__(
        self,
        head_dim: int,
        num_heads: int,
        kernel_size: Union[int, Tuple[int, int]] = (10, 20),
        **kwargs,
    ) -> None:
        super().__init__(head_dim, num_heads, **kwargs)
        sides = (kernel_size,) * 2 if isinstance(kernel_size, int) else tuple(kernel_size)
        if len(sides) != 2:
            raise ValueError(f'kernel_size must be one or two integers, got {kernel_size!r}')
        self.kernel_size = tuple(positive('kernel_size', side, 1) for side in sides)
        # Near a flat filter: the kernel falls slowly, from about 1.
        channels, taps = num_heads * head_dim, math.prod(sides)
        flat = torch.full((2 * channels, 1, *sides), taps**-0.5)  # of queries, of keys
        self.filters = nn.Parameter(flat * (1 + 0.1 * torch.randn_like(flat)))

    def codes(
        self, seed: Tensor, rows: range, hw_shape: HW, dtype: torch.dtype
    ) -> Sequence[Tensor]:
        (height, width), channels = self.kernel_size, self.num_heads * self.head_dim
        # The noise that the filters see in these rows, by its place on the plane.
        above, left = height // 2, width // 2
        y = torch.arange(rows.start - above, rows.stop + height - 1 - above, device=seed.device)
        x = torch.arange(-left, hw_shape[1] + width - 1 - left, device=seed.device)
        each = torch.arange(self.out_dims * channels, device=seed.device)
        noise = normal(seed, y[:, None, None], x[:, None], each).to(
            dtype
        )  # [rows + .., W + .., R C]
        noise = noise.unflatten(-1, (self.out_dims, channels)).permute(2, 3, 0, 1)
        codes = (F.conv2d(noise, f, groups=channels) for f in self.filters.to(dtype).chunk(2))
        heads = (self.num_heads, self.head_dim)
        return [code.unflatten(1, heads).flatten(3).permute(1, 3, 2, 0) for code in codes]


def normal(seed: Tensor, *places: Tensor) -> Tensor:
    """Standard normal numbers, float32, as a function of a seed and of integer coordinates.

    Coordinates are broadcast against one another. A place has the same number on every device, in a
    compiled graph and on whatever map: random generators promise none of these.

    Example:
        >>> numbers = normal(torch.tensor(1), torch.arange(300)[:, None], torch.arange(300))
        >>> numbers.shape, round(abs(numbers.mean().item()), 1), round(numbers.std().item(), 1)
        (torch.Size([300, 300]), 0.0, 1.0)
    """
    bits = _mixed(seed)
    for place in places:
        bits = _mixed(bits ^ (place & 0xFFFFFFFF))
    # 23 bits, the middle of each step: all that float32 has without rounding, never -1 or 1.
    uniform = ((bits >> 9).to(torch.float32) + 0.5) * 2**-22 - 1
    return math.sqrt(2) * torch.erfinv(uniform)


def _mixed(bits: Tensor) -> Tensor:
    """A permutation of the 32-bit numbers that looks random (the "lowbias32" hash)."""
    bits = ((bits ^ (bits >> 16)) * 0x7FEB352D) & 0xFFFFFFFF
    bits = ((bits ^ (bits >> 15)) * 0x846CA68B) & 0xFFFFFFFF
    return bits ^ (bits >> 16)


def build_position(
    cfg: Union[str, dict, None], head_dim: int, num_heads: int
) -> Optional[LinearPosition]:
    """Build a position for an attention.

    Args:
        cfg: None for none, or the config, or just the name, of a registered position.
        head_dim, num_heads: of the attention.

    Raises:
        ValueError: an unknown position; the message names those of this package.

    Example:
        >>> type(build_position('RotaryPosition', 32, 6)).__name__
        'RotaryPosition'
    """
    if cfg is None:
        return None
    cfg = dict(type=cfg) if isinstance(cfg, str) else dict(cfg)
    kind = cfg.get('type')
    if isinstance(kind, str) and MODELS.get(kind) is None:
        known = list(registered(LinearPosition))
        raise ValueError(f'position must be one of {known}, got {kind!r}')
    return MODELS.build(dict(cfg, head_dim=head_dim, num_heads=num_heads))
