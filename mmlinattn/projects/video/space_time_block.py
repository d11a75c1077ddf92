"""Transformer block whose attention is factorised along the axes of a clip."""

from typing import Any, Dict, List, Sequence, Tuple, Union

import torch
from mmengine.model import BaseModule, ModuleList
from torch import Tensor, nn

from ...models.backbones.transformer_block import TransformerBlock
from ...models.layers import (
    MALA,
    RALA,
    AttnCfg,
    BaseAttention,
    LinearAttention,
    MLLAAttention,
    RandomWalkAttention,
    add_branch,
    build_attention,
)
from ...utils.errors import InputError

Shape = Tuple[int, int, int]
# Attentions of a map that also serve frames stacked below each other, without rotary and lepe.
STACKABLE = (MALA, MLLAAttention, RALA, RandomWalkAttention)
# Rules for the axes time, height and width. 'all': a group has all positions of the axis; 'each':
# one position; 'halves': one half; 'strided': every second position.
STEPS: Dict[str, Tuple[str, str, str]] = {
    'joint': ('all', 'all', 'all'),
    'space': ('each', 'all', 'all'),
    'time': ('all', 'each', 'each'),
    'width': ('each', 'each', 'all'),
    'height': ('each', 'all', 'each'),
    'local': ('all', 'halves', 'halves'),
    'global': ('strided', 'strided', 'strided'),
}
SCHEMES: Dict[str, Tuple[str, ...]] = {
    'space': ('space',),
    'joint': ('joint',),
    'divided': ('time', 'space'),
    'sparse': ('local', 'global'),
    'axial': ('time', 'width', 'height'),
}


def resolve_scheme(scheme: Union[str, Sequence[str]]) -> Tuple[str, ...]:
    """Return the steps of a scheme, given by its name or as a list of steps."""
    steps = SCHEMES.get(scheme) if isinstance(scheme, str) else scheme
    if not isinstance(steps, (list, tuple)) or not steps or any(s not in STEPS for s in steps):
        raise ValueError(
            f'scheme must be one of {tuple(SCHEMES)} or a list of steps among {tuple(STEPS)}, '
            f'got {scheme!r}'
        )
    return tuple(steps)


def split_groups(clip: Tensor, shape: Shape, step: str) -> Tuple[Tensor, Shape]:
    """Split the tokens (B, T * H * W, C) of a clip of a shape (T, H, W) into the groups of a step.

    Returns:
        (B, G, N, C) with G groups of N tokens, and the (T, H, W) of a group.
    """
    counts = _group_counts(shape, step)
    sizes: List[int] = []
    for size, (groups, strided) in zip(shape, counts):
        tokens = size // groups
        sizes += (tokens, groups) if strided else (groups, tokens)
    group_dims, token_dims = _dims(counts)
    split = clip.unflatten(1, sizes).permute(0, *group_dims, *token_dims, -1)
    frames, height, width = (size // groups for size, (groups, _) in zip(shape, counts))
    return split.flatten(1, 3).flatten(2, 4), (frames, height, width)


def merge_groups(groups: Tensor, shape: Shape, step: str) -> Tensor:
    """Return the clip (B, T * H * W, C) of its groups, the inverse of :func:`split_groups`."""
    counts = _group_counts(shape, step)
    outer = [count for count, _ in counts]
    inner = [size // count for size, count in zip(shape, outer)]
    split = groups.unflatten(2, inner).unflatten(1, outer)  # [B, g, g, g, n, n, n, C]
    group_dims, token_dims = _dims(counts)
    order = [(group_dims + token_dims).index(dim) + 1 for dim in range(1, 7)]
    return split.permute(0, *order, -1).flatten(1, 6)


def _group_counts(shape: Shape, step: str) -> List[Tuple[int, bool]]:
    """Return the number of groups along each axis, and whether their tokens are strided."""
    counts = []
    for name, size, rule in zip(('frames', 'rows', 'columns'), shape, STEPS[step]):
        if rule in ('halves', 'strided') and size % 2:
            raise InputError(
                f'step {step!r} halves the clip along each axis, but it has {size} {name} of '
                f'patches, (T, H, W) = {tuple(shape)}: choose an even number, by num_frames or by '
                'an image side that is a multiple of twice the patch size'
            )
        counts.append(({'all': 1, 'each': size}.get(rule, 2), rule == 'strided'))
    return counts


def _dims(counts: Sequence[Tuple[int, bool]]) -> Tuple[List[int], List[int]]:
    """Return the dims of groups and of tokens, in a clip with two dims for each axis."""
    groups = [2 * i + 1 + strided for i, (_, strided) in enumerate(counts)]
    tokens = [2 * i + 2 - strided for i, (_, strided) in enumerate(counts)]
    return groups, tokens


def attend_in_groups(
    attn: nn.Module, extra: Tensor, clip: Tensor, shape: Shape, step: str, drop_path: nn.Module
) -> Tuple[Tensor, Tensor]:
    """Apply an attention to each group of a step; extra tokens are (B, E, C).

    Every group of the clip (B, T * H * W, C) gets a copy of the extra tokens. Their results are
    averaged over the groups. Both results have the shapes of the inputs.
    """
    groups, inner = split_groups(clip, shape, step)
    batch, count, num_extra = *groups.shape[:2], extra.shape[1]
    if num_extra:
        copies = extra[:, None].expand(-1, count, -1, -1)
        groups = torch.cat([copies, groups], 2)
    out = attn(groups.flatten(0, 1), _map_shape(attn, inner), num_extra_tokens=num_extra)
    out = drop_path(out).unflatten(0, (batch, count))
    return out[:, :, :num_extra].mean(1), merge_groups(out[:, :, num_extra:], shape, step)


def _map_shape(attn: nn.Module, shape: Shape) -> Tuple[int, ...]:
    """Return the map of a group, (T H, W): its frames are stacked below each other.

    An attention with ``takes_clips`` gets the (T, H, W) of several frames.
    """
    frames, height, width = shape
    if getattr(attn, 'takes_clips', False) and frames > 1 and height * width > 1:
        return shape
    return frames * height, width


def check_clip(attn: BaseAttention) -> None:
    """Raise ValueError unless an attention supports tokens of several frames.

    An attention that needs no map does. One that sets ``takes_clips`` is called with
    ``hw_shape=(T, H, W)``, all others with (T H, W).
    """
    name = type(attn).__name__
    takes_clips = getattr(attn, 'takes_clips', False)
    if not takes_clips and not isinstance(attn, STACKABLE) and attn.needs_map:
        other = 'ClipRippleAttention' if name == 'RippleAttention' else 'another attention'
        raise ValueError(
            f'{name} depends on positions in a 2D map and does not support clips of several '
            f"frames: attend along single axes or frames (scheme='divided'), or take {other}"
        )
    options: Dict[str, Any] = dict(rotary=False, lepe=0)
    if isinstance(attn, LinearAttention):
        options['position'] = None
    for option, off in options.items():
        if getattr(attn, option):
            raise ValueError(
                f'{name} with {option} depends on positions in a 2D map and does not support '
                f'clips of several frames: set {option}={off}'
            )


class SpaceTimeStep(BaseModule):
    """Step before the last one of a :class:`SpaceTimeBlock`: norm, attention and projection.

    The projection starts at 0, so that a new step changes nothing.
    """

    def __init__(self, embed_dims: int, num_heads: int, attn_cfg: AttnCfg, eps: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(embed_dims, eps=eps)
        self.attn = build_attention(attn_cfg, embed_dims, num_heads)
        self.fc = ZeroLinear(embed_dims, embed_dims)

    def forward(self, clip: Tensor, shape: Shape, step: str, drop_path: nn.Module) -> Tensor:
        """Return the change of the tokens (B, T * H * W, C) of a clip."""
        clip = self.norm(clip)
        return self.fc(attend_in_groups(self.attn, clip[:, :0], clip, shape, step, drop_path)[1])


class ZeroLinear(nn.Linear):
    """Linear layer that starts at 0."""

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)


class SpaceTimeBlock(TransformerBlock):
    """Block of "Is Space-Time Attention All You Need for Video Understanding?" (Bertasius et al.,
    ICML 2021), with any attention.

    It has one attention for each step of the scheme. Each step splits the clip into groups and
    attends within them. Steps before the last have a norm and a projection of their own and skip
    extra tokens. In the last step every group has a copy of the extra tokens, whose results are
    averaged. The feed-forward layer follows once.

    Args:
        steps: keys of :data:`STEPS`.
        embed_dims, num_heads, mlp_ratio, attn_cfg, args, kwargs: as in :class:`TransformerBlock`.

    Raises:
        ValueError: an attention does not support clips, and a step needs it; in the forward pass,
            the step halves an axis with an odd number of positions.

    Example:
        >>> block = SpaceTimeBlock(32, 2, 4, 'SoftmaxAttention', steps=('time', 'space'))
        >>> block(torch.randn(1, 1 + 4 * 6 * 8, 32), (4, 6, 8), num_extra_tokens=1).shape
        torch.Size([1, 193, 32])
    """

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        mlp_ratio: float,
        attn_cfg: AttnCfg,
        *args: Any,
        steps: Sequence[str] = ('joint',),
        **kwargs: Any,
    ) -> None:
        super().__init__(embed_dims, num_heads, mlp_ratio, attn_cfg, *args, **kwargs)
        self.step_names, eps = resolve_scheme(steps), self.norm1.eps
        self.steps = ModuleList(
            SpaceTimeStep(embed_dims, num_heads, attn_cfg, eps) for _ in self.step_names[:-1]
        )
        for name, attn in zip(self.step_names, [*(s.attn for s in self.steps), self.attn]):
            if STEPS[name][0] != 'each' and STEPS[name][1:] != ('each', 'each'):
                check_clip(attn)

    def forward(  # type: ignore[override]  # clips alone
        self, x: Tensor, shape: Shape, num_extra_tokens: int = 0
    ) -> Tensor:
        """Apply the block to tokens (B, E + T * H * W, C) of a clip of ``shape`` (T, H, W)."""
        extra, clip = x[:, :num_extra_tokens], x[:, num_extra_tokens:]
        for step, name in zip(self.steps, self.step_names):
            clip = clip + step(clip, shape, name, self.drop_path)
        attended = attend_in_groups(
            self.attn, self.norm1(extra), self.norm1(clip), shape, self.step_names[-1],
            self.drop_path,
        )  # fmt: skip
        x = torch.cat([extra, clip], 1) + torch.cat(attended, 1)
        return add_branch(x, self.ffn(self.norm2(x)), self.drop_path)
