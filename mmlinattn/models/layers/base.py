"""Base class of all attentions: projections, position, gate and argument checks."""

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
from .linear_projection import apply_linear, has_hooks

GATES = (None, 'proj', 'identity', 'tanh')


class TokenLayout(NamedTuple):
    """Map shape, padding and positions of a token sequence.

    Extra tokens (class token, registers) come before the tokens of the map and have no position.

    Attributes:
        hw_shape: (H, W) of the map, row-major.
        key_padding_mask: (B, E + N) bool, True = padding, or None.
        rotary: positions, set only if the attention has ``applies_rotary``, else None.
        num_extra_tokens: E, the number of extra tokens.
    """

    hw_shape: Tuple[int, int]
    key_padding_mask: Optional[Tensor] = None
    rotary: Optional[Rotary] = None
    num_extra_tokens: int = 0

    def split_extra(self, x: Tensor, dim: int = 1) -> Tuple[Tensor, Tensor]:
        """Split x along ``dim`` into extra tokens and map tokens; both are views."""
        extra = self.num_extra_tokens
        return x.narrow(dim, 0, extra), x.narrow(dim, extra, x.shape[dim] - extra)

    def without_extra_tokens(self) -> 'TokenLayout':
        """Return the layout of the map tokens alone."""
        mask = self.key_padding_mask
        mask = mask if mask is None else self.split_extra(mask)[1]
        rotary = self.rotary
        if rotary is not None:  # not _replace, which torch 2.4 cannot compile
            rotary = Rotary(rotary.hw_shape, rotary.head_dim, rotary.base)
        return TokenLayout(self.hw_shape, mask, rotary)


class BaseAttention(BaseModule):
    """Base class of all attentions. A subclass implements :meth:`attend`.

    Every attention has the same interface::

        attn(x, hw_shape, query_pos=None, key_padding_mask=None, num_extra_tokens=0)
        # -> (B, E + N, C)

    One linear layer projects to queries, keys, values and, with ``gate='proj'``, the gate. Then
    ``y = attend(q, k, v)``, ``y += lepe(v)``, ``y *= gate(x)``, ``proj(y)``.

    Extra tokens (class token, registers) come before the tokens of the map. They act as queries
    and keys but have no position. Rotary position does not rotate them, and rings, windows, pooling
    and depth-wise convolutions skip them.

    Args:
        embed_dims: channels C.
        num_heads: heads; must divide ``embed_dims``.
        qkv_bias, proj_bias: biases of the projections.
        rotary: 2D rotary position on queries and keys.
        lepe: kernel size of the locally enhanced position encoding, a depth-wise convolution of
            the values; 0 for none.
        gate: ``None``, ``'proj'`` (linear projection of x), ``'identity'`` or ``'tanh'``.
        proj_drop: dropout after the output projection.
        backend: backend of the operator, see :mod:`mmlinattn.ops.common.dispatch`.
        init_cfg: MMEngine initialisation.

    Attributes:
        applies_rotary: True if :meth:`attend` applies rotary position itself.
        projections: layers that released weights map to; the backbone initialises them.
        backbone_options: options that the backbone provides when the config does not set them.
        backends: accepted values of ``backend``.
        supports_extra_tokens: False if extra tokens raise an error.
        unsupported_options: options among ``rotary``, ``lepe`` and ``gate`` that raise an error.

    Raises:
        ValueError: ``num_heads`` does not divide ``embed_dims``, rotary position cannot split the
            head dim, ``lepe`` is even, the gate or backend is unknown, or the attention does not
            support an option.
    """

    applies_rotary = False
    projections: Tuple[str, ...] = ('in_proj', 'lepe', 'proj')
    backbone_options: Tuple[str, ...] = ('proj_drop',)
    backends: Tuple[str, ...] = BACKENDS
    supports_extra_tokens = True
    unsupported_options: Tuple[str, ...] = ()

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
        options = dict(rotary=rotary, lepe=lepe, gate=gate)
        for name in self.unsupported_options:
            if options[name]:
                raise ValueError(
                    f'{type(self).__name__} does not support {name}, got {options[name]!r}'
                )
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

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: TokenLayout) -> Tensor:
        """Compute the attention from q, k, v (B, heads, E + N, d), returning the same shape."""
        raise NotImplementedError

    def init_projections(self, init: Callable[[nn.Module], None]) -> None:
        """Initialise the projections with ``init``, the initialisation of the backbone.

        All other parameters keep the initial values that the attention has set.
        """
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
            x: tokens (B, E + N, C): E extra tokens, then the tokens of the map, row-major.
            hw_shape: (H, W) with H * W == N.
            query_pos: (B, E + N, C), added to x for queries and keys only.
            key_padding_mask: (B, E + N) bool, True = padding.
            num_extra_tokens: E.

        Returns:
            (B, E + N, C), after the output projection, before the residual.

        Raises:
            ValueError: a shape does not match, or the attention does not support extra tokens.
            TypeError: the padding mask is not bool.
        """
        hw_shape = self._check_inputs(x, hw_shape, query_pos, key_padding_mask, num_extra_tokens)
        rotary = (
            Rotary(hw_shape, self.head_dim, num_extra_tokens=num_extra_tokens)
            if self.rotary
            else None
        )
        deferred = rotary if self.applies_rotary else None
        layout = TokenLayout(hw_shape, key_padding_mask, deferred, num_extra_tokens)
        q, k, v, gate = self.project(x, query_pos, layout)
        q_heads, k_heads, v_heads = (self.split_heads(t) for t in (q, k, v))
        if deferred is None:
            q_heads, k_heads = apply_rotary(q_heads, rotary), apply_rotary(k_heads, rotary)
        out = self.attend(q_heads, k_heads, v_heads, layout)
        out = out.transpose(1, 2).flatten(2)  # [B, E + N, C]
        return self.proj_drop(self.project_out(self._local_and_gate(out, v, gate, layout), q))

    def _local_and_gate(
        self, out: Tensor, v: Tensor, gate: Optional[Tensor], layout: TokenLayout
    ) -> Tensor:
        """Compute ``(lepe(v) + out) * gate``."""
        lepe = self.lepe
        if lepe is not None:
            if layout.key_padding_mask is not None:
                v = v.masked_fill(layout.key_padding_mask[..., None], 0)
            can_fuse = type(lepe) is nn.Conv2d and not has_hooks(lepe) and v.dtype == out.dtype
            if can_fuse and not layout.num_extra_tokens:
                return local_gate(out, v, gate, lepe.weight, lepe.bias, hw_shape=layout.hw_shape)
            out = add_local(self._local_position(lepe, v, layout), out)
        return out if gate is None else out * gate

    def project_out(self, out: Tensor, q: Tensor) -> Tensor:
        """Apply the output projection to ``out`` (B, N, C); ``q`` (B, N, C) are the queries."""
        return apply_linear(self.proj, out)

    def _check_inputs(self, x, hw_shape, query_pos, key_padding_mask, num_extra) -> Tuple[int, int]:
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
        """Raise ValueError unless the attention supports this number of extra tokens.

        Backbones call it at construction.
        """
        if type(num_extra_tokens) is not int or num_extra_tokens < 0:
            raise ValueError(
                f'num_extra_tokens must be an integer of at least 0, got {num_extra_tokens!r}'
            )
        if num_extra_tokens and not self.supports_extra_tokens:
            raise ValueError(
                f'{type(self).__name__} does not support extra tokens, such as a class token, '
                f'which have no position on the map; got {num_extra_tokens=}'
            )

    def project(
        self, x: Tensor, query_pos: Optional[Tensor], layout: TokenLayout
    ) -> Tuple[Tensor, Tensor, Tensor, Optional[Tensor]]:
        """Project x to queries, keys, values and gate, each (B, N, C), views of one tensor.

        A subclass may return fewer keys and values; it then does not support ``lepe``.
        """
        if query_pos is None:
            q, k, v, *gate = apply_linear(self.in_proj, x).split(self.embed_dims, dim=-1)
        else:
            q, k = self.partial_projection(x + query_pos, 0, 2).chunk(2, -1)
            v, *gate = self.partial_projection(x, 2, None).split(self.embed_dims, dim=-1)
        return q, k, v, gate[0] if gate else self.unprojected_gate(x)

    def unprojected_gate(self, x: Tensor) -> Optional[Tensor]:
        """Return the gate ``'identity'`` or ``'tanh'`` of x, or None."""
        if self.gate == 'tanh':
            return torch.tanh(x)
        return x if self.gate == 'identity' else None

    def partial_projection(self, x: Tensor, start: int, stop: Optional[int]) -> Tensor:
        """Compute the outputs ``start`` to ``stop`` of ``in_proj``.

        Output 0 is the queries, 1 the keys, 2 the values, 3 the gate.
        """
        outputs = slice(start * self.embed_dims, stop and stop * self.embed_dims)
        bias = self.in_proj.bias
        return linear(x, self.in_proj.weight[outputs], None if bias is None else bias[outputs])

    def split_heads(self, x: Tensor) -> Tensor:
        """Reshape (B, N, C) to (B, heads, N, d)."""
        return x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)

    @staticmethod
    def _local_position(lepe: nn.Module, v: Tensor, layout: TokenLayout) -> Tensor:
        local = map_to_tokens(lepe(tokens_to_map(layout.split_extra(v)[1], layout.hw_shape)))
        # Extra tokens have no local position.
        return (
            F.pad(local, (0, 0, layout.num_extra_tokens, 0)) if layout.num_extra_tokens else local
        )


def require_static_size(name: str, hw_shape: Sequence[int], reason: str) -> None:
    """Raise ValueError if height or width may be symbolic, as in ``torch.export``.

    Args:
        name: module that needs a static size, for the message.
        hw_shape: (H, W) of the map.
        reason: why it needs a static size.
    """
    if may_be_symbolic(*hw_shape):
        raise ValueError(
            f'{name} cannot be exported with dynamic height and width: {reason}. Export it at a '
            'fixed size (without strict=True, which hides that it is fixed), or use an '
            'attention that docs/export.md lists for dynamic sizes'
        )


def tokens_to_map(x: Tensor, hw_shape: Sequence[int]) -> Tensor:
    """Return (B, N, C) tokens as a (B, C, H, W) map, a channels_last view without a copy."""
    return x.unflatten(1, tuple(hw_shape)).permute(0, 3, 1, 2)


def map_to_tokens(x: Tensor) -> Tensor:
    """Return a (B, C, H, W) map as (B, N, C) tokens, a view if the map is channels_last."""
    tokens = x.permute(0, 2, 3, 1).flatten(1, 2)
    if may_be_symbolic(*x.shape[2:]):
        # torch.export cannot prove the strides of the view. The exported graph does not copy.
        return tokens.clone(memory_format=torch.contiguous_format)
    return tokens
