"""The attention contract, and everything that attentions share around their operator."""

from typing import Callable, NamedTuple, Optional, Sequence, Tuple

import torch
import torch.nn.functional as F
from mmengine.model import BaseModule
from torch import Tensor, nn

from ...ops.common.checks import check_heads, check_hw_shape, check_padding_mask, check_rotary_dim
from ...ops.common.dispatch import BACKENDS
from ...ops.common.matmul import linear
from ...ops.common.numerics import may_be_symbolic
from ...ops.common.rotary import Rotary, apply_rotary
from ...ops.epilogue import add_local, local_gate
from .linear_projection import apply_linear, is_hooked

GATES = (None, 'proj', 'identity', 'tanh')


class TokenMap(NamedTuple):
    """What an attention knows of its tokens beside their values.

    Attributes:
        hw_shape: (H, W) of the map that they are, row-major.
        key_padding_mask: (B, E + N) bool, True = padding, or None.
        rotary: their position, for attentions that apply it themselves, or None.
        num_extra_tokens: E, the tokens without a place that come before those of the map.
    """

    hw_shape: Tuple[int, int]
    key_padding_mask: Optional[Tensor] = None
    rotary: Optional[Rotary] = None
    num_extra_tokens: int = 0

    def split(self, x: Tensor, dim: int = 1) -> Tuple[Tensor, Tensor]:
        """Extra tokens, and those of the map, along ``dim`` of x; views."""
        extra = self.num_extra_tokens
        return x.narrow(dim, 0, extra), x.narrow(dim, extra, x.shape[dim] - extra)

    def of_map(self) -> 'TokenMap':
        """The same without the extra tokens."""
        mask = self.key_padding_mask
        mask = mask if mask is None else self.split(mask)[1]
        rotary = self.rotary
        if rotary is not None:  # not _replace, which torch 2.4 cannot compile
            rotary = Rotary(rotary.hw_shape, rotary.head_dim, rotary.base)
        return TokenMap(self.hw_shape, mask, rotary)


class BaseAttention(BaseModule):
    """Projections, position, gate and output of an attention; a subclass adds :meth:`attend`.

    The contract of every attention of this package::

        attn(x, hw_shape, query_pos=None, key_padding_mask=None, num_extra_tokens=0)
        # -> (B, E + N, C)

    One linear layer projects to queries, keys, values and, with ``gate='proj'``, the gate. Then
    ``y = attend(q, k, v)``, ``y += lepe(v)``, ``y *= gate(x)``, ``proj(y)``.

    Extra tokens, such as a class token, come before those of the map. They are queries and keys
    like all others, but have no place: rotary position does not turn them, and rings, windows,
    pooling and depth-wise convolutions are of the map alone.

    Args:
        embed_dims: channels C.
        num_heads: heads; must divide ``embed_dims``.
        qkv_bias, proj_bias: biases of the projections.
        rotary: 2D rotary position on queries and keys.
        lepe: kernel size of the locally enhanced position encoding, a depth-wise convolution of
            the values; 0 for none.
        gate: ``None``, ``'proj'`` (linear projection of x), ``'identity'`` or ``'tanh'``.
        proj_drop: dropout after the output projection.
        backend: of the operator, see :mod:`mmlinattn.ops.common.dispatch`.
        init_cfg: MMEngine initialisation.

    Raises:
        ValueError: heads that do not divide the channels, a head dim that rotary position cannot
            split, an even ``lepe``, an unknown gate or backend, an option that the class refuses.
    """

    # Whether :meth:`attend` applies rotary position itself.
    defers_rotary = False
    # Layers that released weights map to and that start as the host's own layers do.
    projections: Tuple[str, ...] = ('in_proj', 'lepe', 'proj')
    # Options that it takes from its host where the config says nothing, if the host offers them.
    host_options: Tuple[str, ...] = ('proj_drop',)
    # What ``backend`` may be.
    backends: Tuple[str, ...] = BACKENDS
    # False where an extra token, which has no place on the map, has no meaning: it is refused.
    takes_extra_tokens = True
    # Which of ``rotary``, ``lepe`` and ``gate`` have no place in it.
    refused_options: Tuple[str, ...] = ()

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        qkv_bias: bool = True,
        proj_bias: bool = True,
        rotary: bool = False,
        lepe: int = 0,
        gate: Optional[str] = None,
        proj_drop: float = 0.0,
        backend: str = 'auto',
        init_cfg: Optional[dict] = None,
    ) -> None:
        super().__init__(init_cfg)
        given = dict(rotary=rotary, lepe=lepe, gate=gate)
        for name in self.refused_options:
            if given[name]:
                raise ValueError(f'{type(self).__name__} takes no {name}, got {given[name]!r}')
        self.head_dim = check_heads(embed_dims, num_heads)
        if rotary:
            check_rotary_dim(self.head_dim, 'embed_dims / num_heads')
        if backend not in self.backends:
            raise ValueError(f'backend must be one of {self.backends}, got {backend!r}')
        if gate not in GATES:
            raise ValueError(f'gate must be one of {GATES}, got {gate!r}')
        if lepe < 0 or (lepe and lepe % 2 == 0):
            raise ValueError(f'lepe must be 0 or an odd kernel size, got {lepe}')
        self.embed_dims = embed_dims
        self.num_heads = num_heads
        self.rotary = rotary
        self.gate = gate
        self.backend = backend
        self.in_proj = nn.Linear(
            embed_dims, embed_dims * (4 if gate == 'proj' else 3), bias=qkv_bias
        )
        self.lepe = (
            nn.Conv2d(embed_dims, embed_dims, lepe, padding=lepe // 2, groups=embed_dims)
            if lepe
            else None
        )
        self.proj = nn.Linear(embed_dims, embed_dims, bias=proj_bias)
        self.proj_drop = nn.Dropout(proj_drop)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, tokens: TokenMap) -> Tensor:
        """The attention proper: (B, heads, N, d) each, to (B, heads, N, d)."""
        raise NotImplementedError

    def init_projections(self, init: Callable[[nn.Module], None]) -> None:
        """Let a host start the projections as it starts its own layers; all else that an
        attention has starts as it chose itself."""
        for name in self.projections:
            layer = getattr(self, name, None)
            if layer is not None:
                init(layer)

    def forward(
        self,
        x: Tensor,
        hw_shape: Sequence[int],
        query_pos: Optional[Tensor] = None,
        key_padding_mask: Optional[Tensor] = None,
        num_extra_tokens: int = 0,
    ) -> Tensor:
        """Apply the attention.

        Args:
            x: tokens (B, E + N, C): E extra ones, then those of the map, row-major.
            hw_shape: (H, W) with H * W == N.
            query_pos: (B, E + N, C), added to x for queries and keys only.
            key_padding_mask: (B, E + N) bool, True = padding.
            num_extra_tokens: E.

        Returns:
            (B, E + N, C), after the output projection, before the residual.

        Raises:
            ValueError: shapes that do not fit, naming the argument; extra tokens where the
                attention refuses them.
            TypeError: a padding mask that is not bool.
        """
        hw_shape = self._check(x, hw_shape, query_pos, key_padding_mask, num_extra_tokens)
        rotary = (
            Rotary(hw_shape, self.head_dim, num_extra_tokens=num_extra_tokens)
            if self.rotary
            else None
        )
        deferred = rotary if self.defers_rotary else None
        tokens = TokenMap(hw_shape, key_padding_mask, deferred, num_extra_tokens)
        q, k, v, gate = self.project(x, query_pos, tokens)
        q_heads, k_heads, v_heads = (self.split_heads(t) for t in (q, k, v))
        if deferred is None:
            q_heads, k_heads = apply_rotary(q_heads, rotary), apply_rotary(k_heads, rotary)
        out = self.attend(q_heads, k_heads, v_heads, tokens)
        out = out.transpose(1, 2).flatten(2)  # [B, E + N, C]
        return self.proj_drop(self.project_out(self._local_and_gate(out, v, gate, tokens), q))

    def _local_and_gate(
        self, out: Tensor, v: Tensor, gate: Optional[Tensor], tokens: TokenMap
    ) -> Tensor:
        """``(lepe(v) + out) * gate``."""
        lepe = self.lepe
        if lepe is not None:
            if tokens.key_padding_mask is not None:
                v = v.masked_fill(tokens.key_padding_mask[..., None], 0)
            plain = type(lepe) is nn.Conv2d and not is_hooked(lepe) and v.dtype == out.dtype
            if plain and not tokens.num_extra_tokens:
                return local_gate(out, v, gate, lepe.weight, lepe.bias, hw_shape=tokens.hw_shape)
            out = add_local(self._local_position(lepe, v, tokens), out)
        return out if gate is None else out * gate

    def project_out(self, out: Tensor, q: Tensor) -> Tensor:
        """The output projection, (B, N, C); ``q`` are the projected queries (B, N, C)."""
        return apply_linear(self.proj, out)

    def _check(self, x, hw_shape, query_pos, key_padding_mask, num_extra) -> Tuple[int, int]:
        if x.dim() != 3 or x.shape[-1] != self.embed_dims:
            raise ValueError(f'x must have shape (B, N, {self.embed_dims}), got {tuple(x.shape)}')
        if query_pos is not None and query_pos.shape != x.shape:
            raise ValueError(
                f'query_pos must have the shape of x {tuple(x.shape)}, got {tuple(query_pos.shape)}'
            )
        check_padding_mask(key_padding_mask, x.shape[0], x.shape[1])
        self.check_extra_tokens(num_extra)
        return check_hw_shape(x.shape[1] - num_extra, hw_shape)

    def check_extra_tokens(self, num_extra_tokens: int) -> None:
        """Raise ValueError unless it takes so many; hosts ask when they are built."""
        if type(num_extra_tokens) is not int or num_extra_tokens < 0:
            raise ValueError(
                f'num_extra_tokens must be an integer of at least 0, got {num_extra_tokens!r}'
            )
        if num_extra_tokens and not self.takes_extra_tokens:
            raise ValueError(
                f'{type(self).__name__} takes no extra tokens, such as a class token: they have no '
                f'place on the map; got {num_extra_tokens=}'
            )

    def project(
        self, x: Tensor, query_pos: Optional[Tensor], tokens: TokenMap
    ) -> Tuple[Tensor, Tensor, Tensor, Optional[Tensor]]:
        """Queries, keys, values and gate, each (B, N, C); views of one projection.

        A subclass may return fewer keys and values; it has then no local position.
        """
        if query_pos is None:
            q, k, v, *gate = apply_linear(self.in_proj, x).split(self.embed_dims, dim=-1)
        else:
            q, k = self.partial_projection(x + query_pos, 0, 2).chunk(2, -1)
            v, *gate = self.partial_projection(x, 2, None).split(self.embed_dims, dim=-1)
        return q, k, v, gate[0] if gate else self.own_gate(x)

    def own_gate(self, x: Tensor) -> Optional[Tensor]:
        """The gate where it is no projection."""
        if self.gate == 'tanh':
            return torch.tanh(x)
        return x if self.gate == 'identity' else None

    def partial_projection(self, x: Tensor, start: int, stop: Optional[int]) -> Tensor:
        """Outputs ``start`` to ``stop`` (0 queries, 1 keys, 2 values, 3 gate) of ``in_proj``."""
        outputs = slice(start * self.embed_dims, stop and stop * self.embed_dims)
        bias = self.in_proj.bias
        return linear(x, self.in_proj.weight[outputs], None if bias is None else bias[outputs])

    def split_heads(self, x: Tensor) -> Tensor:
        """(B, N, C) to (B, heads, N, d)."""
        return x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)

    @staticmethod
    def _local_position(lepe: nn.Module, v: Tensor, tokens: TokenMap) -> Tensor:
        local = map_to_tokens(lepe(tokens_to_map(tokens.split(v)[1], tokens.hw_shape)))
        # Extra tokens have none.
        return (
            F.pad(local, (0, 0, tokens.num_extra_tokens, 0)) if tokens.num_extra_tokens else local
        )


def need_known_size(what: str, hw_shape: Sequence[int], why: str) -> None:
    """Raise ValueError where height or width are symbols, as in ``torch.export`` with dynamic
    sizes, which ``what`` cannot be exported with, or may be."""
    if may_be_symbolic(*hw_shape):
        raise ValueError(
            f'{what} cannot be exported with dynamic height and width: {why}. Export it at a fixed '
            'size (without strict=True, which hides that it is one), or take an attention that '
            'docs/export.md lists for dynamic sizes'
        )


def tokens_to_map(x: Tensor, hw_shape: Sequence[int]) -> Tensor:
    """(B, N, C) tokens to a (B, C, H, W) map; a channels_last view, no copy."""
    return x.unflatten(1, tuple(hw_shape)).permute(0, 3, 1, 2)


def map_to_tokens(x: Tensor) -> Tensor:
    """(B, C, H, W) map to (B, N, C) tokens; a view if the map is channels_last."""
    tokens = x.permute(0, 2, 3, 1).flatten(1, 2)
    if may_be_symbolic(*x.shape[2:]):
        # torch.export cannot prove how the view lies in memory. In the graph this is no copy.
        return tokens.clone(memory_format=torch.contiguous_format)
    return tokens
