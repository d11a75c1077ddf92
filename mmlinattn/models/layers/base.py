"""Base class of all attentions: projections, position, gate and argument checks."""

from typing import Any, Callable, List, Optional, Tuple, Union

import torch
from mmengine.model import BaseModule
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ...ops.common.checks import check_heads, check_padding_mask, check_rate, check_rotary_dim
from ...ops.common.dispatch import BACKENDS
from ...ops.common.packed import PackedShapes
from ...ops.common.rotary import Rotary, rotated
from ...utils.suggest import unknown_option
from . import attention_checks as checks
from .linear_projection import apply_dropout, linear_parts
from .packed_images import attend_by_image, attends_at_once, forward_by_image
from .rotary import RotaryCoordinates
from .token_layout import HwShape, TokenLayout, local_position

__all__ = ['BaseAttention', 'TokenLayout']
Projected = Tuple[Tensor, Tensor, Tensor, Optional[Tensor]]  # queries, keys, values, gate


class BaseAttention(BaseModule):
    """Base class of all attentions. A subclass implements :meth:`attend`.

    One linear layer projects to queries, keys, values and, with ``gate='proj'``, the gate. Then
    ``y = attend(q, k, v)``, ``y += lepe(v)``, ``y *= gate(x)``, ``proj(y)``.

    Extra tokens (class token, registers) come before the tokens of the map. They act as queries
    and keys but have no position: rotations, rings, windows, pooling and convolutions skip them.

    Images of different sizes need no padding: their tokens follow each other in a batch of 1, with
    a :class:`mmlinattn.ops.PackedShapes` as ``hw_shape``. Each image has the result that it has
    alone; its extra tokens come before its map.

    Args:
        embed_dims, num_heads: channels C, and heads, which must divide them.
        qkv_bias, proj_bias: biases of the projections.
        rotary: 2D rotary position on queries and keys, by places that count tokens; or a dict with
            the options of :class:`.RotaryCoordinates`, by places from -1 to 1 of the map, with its
            padding, as in DINOv3.
        lepe: kernel size of the locally enhanced position encoding, a depth-wise convolution of
            the values; 0 for none.
        gate: ``None``, ``'proj'`` (linear projection of x), ``'identity'`` or ``'tanh'``.
        proj_drop: dropout after the output projection.
        backend: backend of the operator, see :mod:`mmlinattn.ops.common.dispatch`.

    Attributes:
        needs_map: the output depends on the positions of the tokens on the map.
        any_export_size: ``torch.export`` and ONNX files take any height and width; False if the
            attention, with its default options, calls :func:`require_static_size`.
        applies_rotary: True if :meth:`attend` applies rotary position itself.
        projections: layers that released weights map to; the backbone initialises them.
        backbone_options: options that the backbone provides when the config does not set them.
        backends, supports_extra_tokens: accepted backends; False if extra tokens raise an error.
        cross_values: tokens that the values of cross-attention come from: ``'keys'``, or
            ``'queries'`` by the projection of the queries; None if it has no cross-attention.
        unsupported_options: options among ``rotary``, ``lepe`` and ``gate`` that raise an error.
        num_carried_cores: cores that ``ViT`` carries for it, see :class:`CoreAttention`.

    Raises:
        ValueError: ``num_heads`` does not divide ``embed_dims``, rotary position cannot split the
            head dim, an option has a wrong value, or the attention does not support it.
    """

    needs_map = False
    any_export_size = True
    applies_rotary = False
    projections: Tuple[str, ...] = ('in_proj', 'lepe', 'proj')
    backbone_options: Tuple[str, ...] = ('proj_drop',)
    backends: Tuple[str, ...] = BACKENDS
    supports_extra_tokens = True
    cross_values: Optional[str] = None
    unsupported_options: Tuple[str, ...] = ()
    num_carried_cores = 0

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        qkv_bias: bool = True,
        proj_bias: bool = True,
        rotary: Union[bool, dict] = False,
        lepe: int = 0,
        gate: Optional[str] = None,
        proj_drop: float = 0.0,
        backend: str = 'auto',
        init_cfg: Optional[dict] = None,
        **unknown: Any,
    ) -> None:
        for name in unknown:
            raise TypeError(unknown_option(type(self), name))
        super().__init__(init_cfg)
        checks.check_options(self, rotary, lepe, gate, backend)
        self.head_dim = check_heads(embed_dims, num_heads)
        self.coordinates = RotaryCoordinates(**rotary) if isinstance(rotary, dict) else None
        self.rotary = bool(rotary) or self.coordinates is not None
        if self.rotary:
            check_rotary_dim(self.head_dim, 'embed_dims / num_heads')
        self.embed_dims = embed_dims
        self.num_heads = num_heads
        self.gate = gate
        self.backend = backend
        width = (4 if gate == 'proj' else 3) * embed_dims
        self.in_proj = nn.Linear(embed_dims, width, bias=qkv_bias)
        conv: dict = dict(padding=lepe // 2, groups=embed_dims)
        self.lepe = nn.Conv2d(embed_dims, embed_dims, lepe, **conv) if lepe else None
        self.proj = nn.Linear(embed_dims, embed_dims, bias=proj_bias)
        self.proj_drop = nn.Dropout(check_rate('proj_drop', proj_drop))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: TokenLayout) -> Tensor:
        """Compute the attention from q, k, v (B, heads, E + N, d), returning the same shape."""
        raise NotImplementedError

    def attends_packed(self) -> bool:
        """Return True if :meth:`attend` takes all packed images at once, by ``layout.packed``."""
        return False

    def packed_unsupported_reason(self) -> Optional[str]:
        """Return why the attention does not take packed images, or None if it does."""
        if any(isinstance(module, _BatchNorm) and module.training for module in self.modules()):
            return 'in training its batch norms would see one image at a time'
        return None

    def init_projections(self, init: Callable[[Union[nn.Conv2d, nn.Linear]], None]) -> None:
        """Initialise the projections, and nothing else, as the layers of the backbone."""
        for name in self.projections:
            layer = getattr(self, name, None)
            if layer is not None:
                init(layer)

    def forward(
        self,
        x: Tensor,
        hw_shape: HwShape,
        query_pos: Optional[Tensor] = None,
        key_padding_mask: Optional[Tensor] = None,
        num_extra_tokens: int = 0,
    ) -> Tensor:
        """Apply the attention.

        Args:
            x: tokens (B, E + N, C): E extra tokens, then the tokens of the map, row-major.
            hw_shape: (H, W) with H * W == N, or the shapes of packed images (B is 1, no mask).
            query_pos: (B, E + N, C), added to x for queries and keys only.
            key_padding_mask: (B, E + N) bool, True = padding.
            num_extra_tokens: E.

        Returns:
            (B, E + N, C), after the output projection, before the residual.

        Raises:
            ValueError, TypeError: an input does not match, or is not supported.
        """
        layout = self.token_layout(x, hw_shape, query_pos, key_padding_mask, num_extra_tokens)
        at_once = layout.packed is None or attends_at_once(self)
        # Another projection may depend on the map: such an attention runs image by image.
        if not at_once and type(self).project is not BaseAttention.project:
            return forward_by_image(self, x, query_pos, layout)
        q, k, v, gate = self.project(x, query_pos, layout)
        q_heads, k_heads, v_heads = self.split_heads(q), self.split_heads(k), self.split_heads(v)
        if self.rotary and not self.applies_rotary:
            rotary = self._rotary(layout.packed or layout.hw_shape, layout.num_extra_tokens, x)
            q_heads, k_heads = rotated(rotary, q_heads, k_heads)
        if at_once:
            out = self.attend(q_heads, k_heads, v_heads, layout)
        else:
            out = attend_by_image(self, q_heads, k_heads, v_heads, layout)
        if (
            type(out) is not Tensor
            or out.ndim != 4
            or out.shape[::2] != q_heads.shape[::2]
            or out.shape[1] * out.shape[3] != v.shape[-1]
        ):
            by_proj = type(self).project_out is BaseAttention.project_out
            checks.check_output(self, out, q_heads, by_proj)
        out = out.transpose(1, 2).flatten(2)  # [B, E + N, C]
        out = self.project_out(self._local_and_gate(out, v, gate, layout), q)
        return apply_dropout(self.proj_drop, out)

    def token_layout(
        self,
        x: Tensor,
        hw_shape: HwShape,
        query_pos: Optional[Tensor] = None,
        key_padding_mask: Optional[Tensor] = None,
        num_extra_tokens: int = 0,
    ) -> TokenLayout:
        """Return the layout of the tokens after checking the inputs of :meth:`forward`."""
        if x.ndim != 3 or x.shape[2] != self.embed_dims or query_pos is not None:
            checks.check_tokens(self, x, query_pos)
        if key_padding_mask is not None:
            check_padding_mask(key_padding_mask, x.shape[0], x.shape[1])
        self.check_extra_tokens(num_extra_tokens)
        hw: Any = hw_shape
        packed = None
        is_pair = type(hw) is tuple and len(hw) == 2
        plain = is_pair and type(hw[0]) is type(hw[1]) is int and hw[0] > 0
        if not plain or hw[0] * hw[1] != x.shape[1] - num_extra_tokens:
            # Packed images, symbolic sizes of an export, or an error.
            hw, packed = checks.check_shape(self, x, hw_shape, key_padding_mask, num_extra_tokens)
        rotates = self.rotary and self.applies_rotary
        rotary = self._rotary(packed or hw, num_extra_tokens, x) if rotates else None
        return TokenLayout(hw, key_padding_mask, rotary, num_extra_tokens, False, packed)

    def _rotary(self, maps: Union[Tuple[int, int], PackedShapes], extra: int, x: Tensor) -> Rotary:
        if self.coordinates is None:
            return Rotary(maps, self.head_dim, num_extra_tokens=extra)
        augment = self.coordinates.draw(x.device) if self.training else None
        return Rotary(maps, self.head_dim, self.coordinates.base, extra, 1, True, augment)

    def _local_and_gate(
        self, out: Tensor, v: Tensor, gate: Optional[Tensor], layout: TokenLayout
    ) -> Tensor:
        """Compute ``(lepe(v) + out) * gate`` of tokens (B, E + N, C)."""
        if self.lepe is not None:
            out = local_position(self.lepe, v, layout) + out
        return out if gate is None else out * gate

    def project_out(self, out: Tensor, q: Tensor) -> Tensor:
        """Apply the output projection to ``out`` (B, N, C); ``q`` (B, N, C) are the queries."""
        return self.proj(out)

    def check_extra_tokens(self, num_extra_tokens: int) -> None:
        """Raise ValueError unless the attention supports this number of extra tokens."""
        if num_extra_tokens or type(num_extra_tokens) is not int:
            checks.check_supports_extra_tokens(self, num_extra_tokens)

    def project(self, x: Tensor, query_pos: Optional[Tensor], layout: TokenLayout) -> Projected:
        """Project x to q, k, v and gate, each (B, N, C); without ``lepe`` k and v may be fewer."""
        parts = 4 if self.gate == 'proj' else 3
        if query_pos is None:
            q, k, v, *gate = self.in_proj(x).chunk(parts, -1)
        else:
            with_pos, without = self.project_parts((x + query_pos, 2), (x, parts - 2))
            (q, k), (v, *gate) = with_pos.chunk(2, -1), without.chunk(parts - 2, -1)
        if not gate and self.gate is not None:
            gate = [self.unprojected_gate(x)]
        return q, k, v, gate[0] if gate else None

    def unprojected_gate(self, x: Tensor) -> Optional[Tensor]:
        """Return the gate ``'identity'`` or ``'tanh'`` of x, or None."""
        return torch.tanh(x) if self.gate == 'tanh' else x if self.gate == 'identity' else None

    def project_parts(self, *inputs: Tuple[Tensor, int]) -> List[Tensor]:
        """Compute outputs of ``in_proj`` (q, k, v, gate) from pairs of an input and a number."""
        return linear_parts(self.in_proj, *((x, count * self.embed_dims) for x, count in inputs))

    def split_heads(self, x: Tensor) -> Tensor:
        """Reshape (B, N, C) to (B, heads, N, d)."""
        batch, count, channels = x.shape
        return x.view(batch, count, channels // self.head_dim, self.head_dim).transpose(1, 2)
