"""Base class of all attentions: projections, position, gate and argument checks."""

from numbers import Integral
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple, Union

import torch
import torch.nn.functional as F
from mmengine.model import BaseModule
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ...ops.common.checks import (
    check_heads,
    check_hw_shape,
    check_padding_mask,
    check_rate,
    check_rotary_dim,
)
from ...ops.common.dispatch import BACKENDS
from ...ops.common.numerics import may_be_symbolic, zero_padding
from ...ops.common.packed import PackedShapes, check_packed
from ...ops.common.rotary import Rotary, apply_rotary
from ...ops.epilogue import add_local, local_gate
from ...utils import check_integer
from ...utils.option_names import unknown_option
from .attention_info import AttentionInfo
from .linear_projection import has_hooks, linear_rows
from .rotary import RotaryCoordinates

HwShape = Union[Sequence[int], PackedShapes]
GATES = (None, 'proj', 'identity', 'tanh')


class TokenLayout(NamedTuple):
    """Map shape, padding and positions of a token sequence.

    Extra tokens (class token, registers) come before the tokens of the map and have no position.

    Attributes:
        hw_shape: (H, W) of the map, row-major; of packed images (1, T).
        key_padding_mask: (B, E + N) bool, True = padding, or None.
        rotary: positions, set only if the attention has ``applies_rotary``, else None.
        num_extra_tokens: E, the number of extra tokens.
        num_frames: T of a clip, whose frames are stacked below each other in ``hw_shape``.
        cross: the keys are other tokens than the queries; the mask is theirs.
        packed: map sizes of packed images; only an attention with ``attends_packed`` sees them.
    """

    hw_shape: Tuple[int, int]
    key_padding_mask: Optional[Tensor] = None
    rotary: Optional[Rotary] = None
    num_extra_tokens: int = 0
    num_frames: int = 1
    cross: bool = False
    packed: Optional[PackedShapes] = None

    def images(self) -> 'List[TokenLayout]':
        """Return the layout of each of the packed images."""
        packed, rotary = self.packed, self.rotary
        assert packed is not None
        rotaries = [None] * len(packed.lengths) if rotary is None else rotary.images()
        return [
            TokenLayout(shape, None, position, self.num_extra_tokens)
            for shape, position in zip(packed.hw_shapes, rotaries)
        ]

    def split_extra(self, x: Tensor, dim: int = 1) -> Tuple[Tensor, Tensor]:
        """Split x along ``dim`` into extra tokens and map tokens; both are views."""
        extra = self.num_extra_tokens
        return x.narrow(dim, 0, extra), x.narrow(dim, extra, x.shape[dim] - extra)

    def without_extra_tokens(self) -> 'TokenLayout':
        """Return the layout of the map tokens alone."""
        mask = self.key_padding_mask
        mask = mask if mask is None else self.split_extra(mask)[1]
        rotary = self.rotary
        if rotary is not None:
            rotary = rotary.of_map(rotary.hw_shape, 0)
        return TokenLayout(self.hw_shape, mask, rotary, 0, self.num_frames)


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

    The tokens of a clip have ``hw_shape=(T, H, W)``. Attentions whose result depends on the
    position in a 2D map do not support clips of several frames.

    Images of different sizes need no padding: their tokens follow each other in a batch of 1, with
    a :class:`mmlinattn.ops.PackedShapes` as ``hw_shape``. Each image attends to itself only, with
    the result that it has alone. Extra tokens come before the map of each image.

    Args:
        embed_dims: channels C.
        num_heads: heads; must divide ``embed_dims``.
        qkv_bias, proj_bias: biases of the projections.
        rotary: 2D rotary position on queries and keys, by places that count tokens; or a dict with
            the options of :class:`.RotaryCoordinates`, by places from -1 to 1 as in DINOv3.
        lepe: kernel size of the locally enhanced position encoding, a depth-wise convolution of
            the values; 0 for none.
        gate: ``None``, ``'proj'`` (linear projection of x), ``'identity'`` or ``'tanh'``.
        proj_drop: dropout after the output projection.
        backend: backend of the operator, see :mod:`mmlinattn.ops.common.dispatch`.
        init_cfg: MMEngine initialisation.

    Attributes:
        info: formula, cost and source of the attention.
        applies_rotary: True if :meth:`attend` applies rotary position itself.
        projections: layers that released weights map to; the backbone initialises them.
        backbone_options: options that the backbone provides when the config does not set them.
        backends: accepted values of ``backend``.
        supports_extra_tokens: False if extra tokens raise an error.
        supports_clips: False if clips raise an error; None: they do if ``info.needs_map`` is set.
        cross_values: tokens that the values of cross-attention come from, ``'keys'`` or
            ``'queries'``; None if the attention cannot attend to other tokens. See
            :class:`LinearCrossAttention`.
        unsupported_options: options among ``rotary``, ``lepe`` and ``gate`` that raise an error.

    Raises:
        ValueError: ``num_heads`` does not divide ``embed_dims``, rotary position cannot split the
            head dim, ``lepe`` is even, ``rotary`` is neither a bool nor a dict, the gate or
            backend is unknown, or the attention does not support an option.
    """

    info: Optional[AttentionInfo] = None
    applies_rotary = False
    projections: Tuple[str, ...] = ('in_proj', 'lepe', 'proj')
    backbone_options: Tuple[str, ...] = ('proj_drop',)
    backends: Tuple[str, ...] = BACKENDS
    supports_extra_tokens = True
    supports_clips: Optional[bool] = None
    cross_values: Optional[str] = None
    unsupported_options: Tuple[str, ...] = ()

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
        options = dict(rotary=(rotary, False), lepe=(lepe, 0), gate=(gate, None))
        for name in self.unsupported_options:
            value, off = options[name]
            if value not in (off, None):
                raise ValueError(
                    f'{type(self).__name__} does not support {name}, got {value!r}: set '
                    f'{name}={off} in its attn_cfg, or take another attention'
                )
        self.head_dim = check_heads(embed_dims, num_heads)
        if rotary is not None and not isinstance(rotary, (bool, dict)):
            raise ValueError(
                f'rotary must be True, False or a dict of RotaryCoordinates, got {rotary!r}'
            )
        self.coordinates = RotaryCoordinates(**rotary) if isinstance(rotary, dict) else None
        self.rotary = bool(rotary) or self.coordinates is not None
        if self.rotary:
            check_rotary_dim(self.head_dim, 'embed_dims / num_heads')
        if backend not in self.backends:
            raise ValueError(f'backend must be one of {self.backends}, got {backend!r}')
        if gate not in GATES:
            raise ValueError(f'gate must be one of {GATES}, got {gate!r}')
        is_size = isinstance(lepe, Integral) and not isinstance(lepe, bool) and lepe >= 0
        if not is_size or (lepe and lepe % 2 == 0):
            raise ValueError(f'lepe must be 0 or an odd kernel size, got {lepe!r}')
        self.embed_dims = embed_dims
        self.num_heads = num_heads
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
        self.proj_drop = nn.Dropout(check_rate('proj_drop', proj_drop))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: TokenLayout) -> Tensor:
        """Compute the attention from q, k, v (B, heads, E + N, d), returning the same shape."""
        raise NotImplementedError

    def attends_packed(self) -> bool:
        """Return True if :meth:`attend` takes all packed images at once, by ``layout.packed``.

        For other attentions it is called image by image, also for a subclass that overrides
        :meth:`attend` or :meth:`project` and not this method.
        """
        return False

    def _attends_packed(self) -> bool:
        kinds = type(self).__mro__
        owner, *others = (
            next(kind for kind in kinds if name in vars(kind))
            for name in ('attends_packed', 'attend', 'project')
        )
        return all(issubclass(owner, other) for other in others) and self.attends_packed()

    def packed_unsupported_reason(self) -> Optional[str]:
        """Return why the attention does not take packed images, or None if it does."""
        if any(isinstance(module, _BatchNorm) and module.training for module in self.modules()):
            return 'in training its batch norms would see one image at a time'
        return None

    def init_projections(self, init: Callable[[Union[nn.Conv2d, nn.Linear]], None]) -> None:
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
        hw_shape: HwShape,
        query_pos: Optional[Tensor] = None,
        key_padding_mask: Optional[Tensor] = None,
        num_extra_tokens: int = 0,
    ) -> Tensor:
        """Apply the attention.

        Args:
            x: tokens (B, E + N, C): E extra tokens, then the tokens of the map, row-major.
            hw_shape: (H, W) with H * W == N, (T, H, W) of a clip, or the
                :class:`mmlinattn.ops.PackedShapes` of images whose tokens are packed: B is 1 then,
                the tokens are E + H * W of each image, and there is no mask.
            query_pos: (B, E + N, C), added to x for queries and keys only.
            key_padding_mask: (B, E + N) bool, True = padding.
            num_extra_tokens: E.

        Returns:
            (B, E + N, C), after the output projection, before the residual.

        Raises:
            ValueError: a shape does not match, or the attention does not support extra tokens,
                clips or packed images.
            TypeError: the padding mask is not bool.
        """
        hw_shape, num_frames = self._stack_frames(hw_shape)
        maps = hw_shape
        hw_shape = self._check_inputs(x, hw_shape, query_pos, key_padding_mask, num_extra_tokens)
        packed = None
        if isinstance(maps, PackedShapes):
            packed = maps.with_extra_tokens(num_extra_tokens)
        # Another projection may depend on the map: such an attention runs image by image.
        own_projection = type(self).project is not BaseAttention.project
        if packed is not None and own_projection and not self._attends_packed():
            return self._forward_by_image(x, packed, query_pos)
        rotary = self._rotary(packed or hw_shape, num_extra_tokens, x) if self.rotary else None
        deferred = rotary if self.applies_rotary else None
        layout = TokenLayout(
            hw_shape, key_padding_mask, deferred, num_extra_tokens, num_frames, packed=packed
        )
        q, k, v, gate = self.project(x, query_pos, layout)
        q_heads, k_heads, v_heads = (self.split_heads(t) for t in (q, k, v))
        if deferred is None:
            q_heads, k_heads = apply_rotary(q_heads, rotary), apply_rotary(k_heads, rotary)
        if layout.packed is None or self._attends_packed():
            out = self.attend(q_heads, k_heads, v_heads, layout)
        else:
            out = self._attend_by_image(q_heads, k_heads, v_heads, layout)
        self._check_output(out, q_heads)
        out = out.transpose(1, 2).flatten(2)  # [B, E + N, C]
        return self.proj_drop(self.project_out(self._local_and_gate(out, v, gate, layout), q))

    def _check_output(self, out: Any, q: Tensor) -> None:
        """Raise ValueError unless :meth:`attend` has returned one vector for each query."""
        if may_be_symbolic(*q.shape):
            return
        is_right = isinstance(out, Tensor) and out.dim() == 4 and out.shape[::2] == q.shape[::2]
        width = None
        if type(self.proj) is nn.Linear and type(self).project_out is BaseAttention.project_out:
            width = self.proj.in_features
        if not is_right or width not in (None, out.shape[1] * out.shape[3]):
            found = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
            channels = f', heads * d = {width}' if width else ''
            raise ValueError(
                f'{type(self).__name__}.attend() must return (B, heads, E + N, d) with '
                f'B = {q.shape[0]}, E + N = {q.shape[2]}{channels}, got {found}'
            )

    def _rotary(self, maps: Union[Tuple[int, int], PackedShapes], extra: int, x: Tensor) -> Rotary:
        if self.coordinates is None:
            return Rotary(maps, self.head_dim, num_extra_tokens=extra)
        augment = self.coordinates.draw(x.device) if self.training else None
        return Rotary(maps, self.head_dim, self.coordinates.base, extra, 1, True, augment)

    def _attend_by_image(self, q: Tensor, k: Tensor, v: Tensor, layout: TokenLayout) -> Tensor:
        assert layout.packed is not None
        images = zip(*(layout.packed.split(x, 2) for x in (q, k, v)), layout.images())
        return torch.cat([self.attend(*image).transpose(1, 2) for image in images], 1).transpose(
            1, 2
        )

    def _forward_by_image(
        self, x: Tensor, packed: PackedShapes, query_pos: Optional[Tensor]
    ) -> Tensor:
        parts = packed.split(x)
        positions = [None] * len(parts) if query_pos is None else packed.split(query_pos)
        extra = packed.num_extra_tokens
        images = zip(parts, packed.hw_shapes, positions)
        return torch.cat(
            [self(part, shape, position, None, extra) for part, shape, position in images], 1
        )

    def _local_and_gate(
        self, out: Tensor, v: Tensor, gate: Optional[Tensor], layout: TokenLayout
    ) -> Tensor:
        """Compute ``(lepe(v) + out) * gate``."""
        lepe, packed = self.lepe, layout.packed
        if lepe is not None and packed is not None:
            gates = [None] * len(packed.lengths) if gate is None else packed.split(gate)
            images = zip(packed.split(out), packed.split(v), gates, layout.images())
            return torch.cat([self._local_and_gate(*image) for image in images], 1)
        if lepe is not None:
            v = zero_padding(v, layout.key_padding_mask)
            can_fuse = type(lepe) is nn.Conv2d and not has_hooks(lepe) and v.dtype == out.dtype
            if can_fuse and not layout.num_extra_tokens:
                return local_gate(out, v, gate, lepe.weight, lepe.bias, hw_shape=layout.hw_shape)
            out = add_local(self._local_position(lepe, v, layout), out)
        return out if gate is None else out * gate

    def project_out(self, out: Tensor, q: Tensor) -> Tensor:
        """Apply the output projection to ``out`` (B, N, C); ``q`` (B, N, C) are the queries."""
        return self.proj(out)

    def _check_inputs(self, x, hw_shape, query_pos, key_padding_mask, num_extra) -> Tuple[int, int]:
        """Return the checked (H, W), (1, T) of packed images."""
        if x.dim() != 3 or x.shape[-1] != self.embed_dims:
            raise ValueError(f'x must have shape (B, N, {self.embed_dims}), got {tuple(x.shape)}')
        if query_pos is not None and query_pos.shape != x.shape:
            raise ValueError(
                f'query_pos must have the shape of x {tuple(x.shape)}, got {tuple(query_pos.shape)}'
            )
        check_padding_mask(key_padding_mask, x.shape[0], x.shape[1])
        self.check_extra_tokens(num_extra)
        if not isinstance(hw_shape, PackedShapes):
            return check_hw_shape(x.shape[1] - num_extra, hw_shape)
        reason = self.packed_unsupported_reason()
        if reason is not None:
            raise ValueError(
                f'{type(self).__name__} does not support packed images: {reason}. Pad the images '
                'to one size, or call it for each image'
            )
        packed = hw_shape.with_extra_tokens(num_extra)
        check_packed(packed, x, key_padding_mask)
        return 1, packed.num_tokens

    def check_extra_tokens(self, num_extra_tokens: int) -> None:
        """Raise ValueError unless the attention supports this number of extra tokens.

        Backbones call it at construction.
        """
        check_integer('num_extra_tokens', num_extra_tokens, least=0)
        if num_extra_tokens and not self.supports_extra_tokens:
            raise ValueError(
                f'{type(self).__name__} does not support extra tokens, such as a class token, '
                f'which have no position on the map; got {num_extra_tokens=}. Take another '
                'attention, or a backbone without them: with_cls_token=False (in ViT also '
                'num_registers=0, or cls_token_from=N, from layer N on), global_tokens=0 in the '
                'arch of ViL'
            )

    def check_clip(self) -> None:
        """Raise ValueError unless the attention supports tokens of several frames.

        Backbones call it at construction.
        """
        supported, name = self.supports_clips, type(self).__name__
        if supported is None:
            supported = not getattr(getattr(type(self), 'info', None), 'needs_map', False)
        if not supported:
            raise ValueError(
                f'{name} depends on positions in a 2D map and does not support clips of several '
                "frames: attend along single axes or frames (scheme='divided'), or take another "
                'attention'
            )
        for option, off in dict(rotary=False, lepe=0).items():
            if getattr(self, option):
                raise ValueError(
                    f'{name} with {option} depends on positions in a 2D map and does not support '
                    f'clips of several frames: set {option}={off}'
                )

    def _stack_frames(self, shape: HwShape) -> Tuple[HwShape, int]:
        """Return the (H, W) of a map or of stacked frames, and the number of frames."""
        if not isinstance(shape, (tuple, list)) or len(shape) != 3:
            return shape, 1
        if isinstance(shape[0], (tuple, list)):  # three maps, which the check of sizes refuses
            return shape, 1
        frames, height, width = shape
        if frames != 1:
            self.check_clip()
        return (frames * height, width), frames

    def project(
        self, x: Tensor, query_pos: Optional[Tensor], layout: TokenLayout
    ) -> Tuple[Tensor, Tensor, Tensor, Optional[Tensor]]:
        """Project x to queries, keys, values and gate, each (B, N, C), views of one tensor.

        A subclass may return fewer keys and values; it then does not support ``lepe``.
        """
        if query_pos is None:
            q, k, v, *gate = self.in_proj(x).split(self.embed_dims, dim=-1)
        else:
            q, k = self.partial_projection(x + query_pos, 0, 2).chunk(2, -1)
            v, *gate = self.partial_projection(x, 2, None).split(self.embed_dims, dim=-1)
        return q, k, v, gate[0] if gate else self.unprojected_gate(x)

    @property
    def value_output(self) -> int:
        """Return the output of ``in_proj`` that the values of cross-attention are."""
        return 2

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
        return linear_rows(self.in_proj, x, outputs)

    def split_heads(self, x: Tensor) -> Tensor:
        """Reshape (B, N, C) to (B, heads, N, d)."""
        return x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)

    @staticmethod
    def _local_position(lepe: Callable[[Tensor], Tensor], v: Tensor, layout: TokenLayout) -> Tensor:
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


def convolve_tokens(conv: Callable[[Tensor], Tensor], x: Tensor, layout: TokenLayout) -> Tensor:
    """Apply ``conv`` to the map of tokens (B, E + N, C); padding is 0, extra tokens do not change.

    Returns:
        (B, E + M, C) in the dtype of the convolution, for M tokens of its output.
    """
    extra, x = layout.split_extra(zero_padding(x, layout.key_padding_mask))
    x = map_to_tokens(conv(tokens_to_map(x, layout.hw_shape)))
    return torch.cat([extra.to(x.dtype), x], 1) if layout.num_extra_tokens else x


def map_to_tokens(x: Tensor) -> Tensor:
    """Return a (B, C, H, W) map as (B, N, C) tokens, a view if the map is channels_last."""
    tokens = x.permute(0, 2, 3, 1).flatten(1, 2)
    if may_be_symbolic(*x.shape[2:]):
        # torch.export cannot prove the strides of the view. The exported graph does not copy.
        return tokens.clone(memory_format=torch.contiguous_format)
    return tokens
