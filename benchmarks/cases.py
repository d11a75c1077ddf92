"""Registry of benchmark cases, each with the implementations to compare.

A case is a function from a :class:`Setup` to its baselines by name, registered with :func:`case`.
The others are compared with the first one. Operators need torch alone; layers and backbones
are imported only when they are built.
"""

import copy
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Callable, Dict, List, Optional, Sequence, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmlinattn.ops import (
    Rotary,
    additive_attention,
    linear_attention,
    mala_attention,
    rala_attention,
    random_walk_attention,
    ripple_attention,
    stick_breaking,
)

from .baselines import flash_bla, textbook

if TYPE_CHECKING:
    from mmlinattn.models.layers import AttnCfg

KINDS = ('operator', 'layer', 'backbone')
OURS = 'mmlinattn'
# Stride of the first stage of most backbones; it defines the number of tokens.
STRIDE = 4
LAYOUTS = ('tokens', 'contiguous', 'triton')


@dataclass(frozen=True)
class Setup:
    """Sizes, dtype and device of one measurement.

    Args:
        hw_shape: the map of an operator or a layer, the image of a backbone.
        training: True if gradients are computed.
        layout: memory layout of q, k and v: ``'tokens'``, (B, N, heads, d) in memory each, as a
            projection stores it; ``'contiguous'``, (B, heads, N, d) in memory; ``'triton'``, views
            of one (B, N, 3, heads, d).
    """

    hw_shape: Tuple[int, int]
    batch: int
    heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device
    training: bool = False
    layout: str = 'tokens'

    @property
    def num_tokens(self) -> int:
        return self.hw_shape[0] * self.hw_shape[1]

    @property
    def embed_dims(self) -> int:
        return self.heads * self.head_dim

    def randn(self, *shape: int) -> Tensor:
        return torch.randn(*shape, dtype=self.dtype, device=self.device)

    def qkv(self) -> Tuple[Tensor, Tensor, Tensor]:
        """Return random q, k, v, (B, heads, N, d) each, in the memory order of ``layout``."""
        shape = self.batch, self.num_tokens, self.heads, self.head_dim
        if self.layout == 'triton':
            parts = self.randn(*shape[:2], 3, *shape[2:]).unbind(2)
        else:
            parts = [self.randn(*shape) for _ in range(3)]
        q, k, v = (x.transpose(1, 2) for x in parts)
        if self.layout == 'contiguous':
            q, k, v = (x.contiguous() for x in (q, k, v))
        return self.leaf(q), self.leaf(k), self.leaf(v)

    def features(self) -> Tuple[Tensor, Tensor, Tensor]:
        """Return random q, k, v as :meth:`qkv` does, with positive q and k."""
        q, k, v = self.qkv()
        for x in (q, k):
            x.detach().copy_(F.elu(x.detach()) + 1)  # in place, to keep the memory order
        return q, k, v

    def rotary_tables(self) -> textbook.Tables:
        return textbook.rotary_tables(self.hw_shape, self.head_dim, self.dtype, self.device)

    def leaf(self, x: Tensor) -> Tensor:
        return x.detach().requires_grad_(self.training)

    def module(self, module: nn.Module) -> nn.Module:
        from mmlinattn.models.layers import optimize_for_cpu

        return optimize_for_cpu(module.to(self.device, self.dtype).train(self.training))


@dataclass(frozen=True)
class Baseline:
    """One implementation of a case.

    Args:
        call: the forward pass.
        inputs: its inputs; a training step computes gradients for them and for ``parameters``.
        same: True if it computes the result of the first baseline; checked before any timing.
        quadratic: True if time grows with the square of the tokens; skipped if it takes too long.
        as_first: converts its outputs and input gradients to the layout of the first baseline.
    """

    call: Callable[[], object]
    inputs: Sequence[Tensor]
    parameters: Sequence[Tensor] = ()
    same: bool = True
    quadratic: bool = False
    as_first: Callable[[Tensor], Tensor] = lambda x: x


Baselines = Dict[str, Baseline]


@dataclass(frozen=True)
class Case:
    """A registered case.

    Args:
        kind: ``'operator'``, ``'layer'`` or ``'backbone'``.
        about: the comparison and the expected result, for the report.
        build: builds the baselines for a setup.
        stride: pixels per token along each side of the first stage, for a backbone.
    """

    name: str
    kind: str
    about: str
    build: Callable[[Setup], Baselines]
    stride: int = STRIDE


CASES: Dict[str, Case] = {}


def map_shape(num_tokens: int) -> Tuple[int, int]:
    """Return the map (H, W) with ``num_tokens`` tokens nearest to a square, with H <= W.

    Example:
        >>> map_shape(4096), map_shape(2048), map_shape(7)
        ((64, 64), (32, 64), (1, 7))
    """
    height = next(h for h in range(int(num_tokens**0.5), 0, -1) if num_tokens % h == 0)
    return height, num_tokens // height


def case(name: str, kind: str, about: str, stride: int = STRIDE) -> Callable:
    """Register a case; raise ValueError if the name is taken or the kind is unknown."""
    if name in CASES or kind not in KINDS:
        raise ValueError(f'case {name!r} is taken, or its kind {kind!r} is none of {KINDS}')

    def register(build: Callable[[Setup], Baselines]) -> Callable[[Setup], Baselines]:
        CASES[name] = Case(name, kind, about, build, stride)
        return build

    return register


def operator_baselines(
    setup: Setup,
    ours: Callable[..., Tensor],
    inputs: Sequence[Tensor],
    textbook: Callable[..., Tensor],
    library: Optional[Callable[..., Tensor]] = None,
) -> Baselines:
    """Return the baselines of an operator: its textbook formula and softmax attention.

    Args:
        ours: called with ``*inputs`` and ``backend``.
        inputs: q, k, v and all other tensors with a gradient.
        textbook: called with ``*inputs``.
        library: the same operator of flash-bidirectional-linear-attention, used on a GPU if that
            package is installed.
    """
    q, k, v = inputs[:3]
    baselines = {OURS: Baseline(lambda: ours(*inputs, backend='auto'), inputs)}
    if setup.device.type == 'cuda':
        baselines[f'{OURS} torch'] = Baseline(lambda: ours(*inputs, backend='torch'), inputs)
        if library and flash_bla.installed():
            baselines['flash_bla'] = Baseline(lambda: library(*inputs), inputs)
    baselines['textbook'] = Baseline(lambda: textbook(*inputs), inputs)
    baselines['SDPA softmax'] = Baseline(
        lambda: F.scaled_dot_product_attention(q, k, v), (q, k, v), same=False, quadratic=True
    )
    return baselines


@case('rala', 'operator', 'RALA with rotary position; linear in the tokens, SDPA is quadratic.')
def _rala(setup: Setup) -> Baselines:
    rotary, tables = Rotary(setup.hw_shape, setup.head_dim), setup.rotary_tables()
    return operator_baselines(
        setup,
        lambda q, k, v, backend: rala_attention(q, k, v, rotary=rotary, backend=backend),
        setup.qkv(),
        lambda q, k, v: textbook.rala(q, k, v, tables),
        lambda q, k, v: flash_bla.rala(q, k, v, tables),
    )


@case('mala', 'operator', 'MALA with rotary position, beside RALA; linear in the tokens.')
def _mala(setup: Setup) -> Baselines:
    rotary, tables = Rotary(setup.hw_shape, setup.head_dim), setup.rotary_tables()
    q, k, v = setup.qkv()
    baselines = operator_baselines(
        setup,
        lambda q, k, v, backend: mala_attention(q, k, v, rotary=rotary, backend=backend),
        (q, k, v),
        lambda q, k, v: textbook.mala(q, k, v, tables),
    )
    call = partial(rala_attention, q, k, v, rotary=rotary)
    return {**baselines, 'RALA': Baseline(call, (q, k, v), same=False)}


@case(
    'rala-layer',
    'layer',
    'RALA with projections, local position and gate, against the same layer channels first and '
    'the same layer with softmax attention.',
)
def _rala_layer(setup: Setup) -> Baselines:
    from mmlinattn.models.layers import RALA, SoftmaxAttention, map_to_tokens, tokens_to_map

    from .baselines.channels_first import Attention

    ours = setup.module(RALA(setup.embed_dims, setup.heads))
    first = setup.module(Attention(ours))
    softmax = setup.module(
        SoftmaxAttention(setup.embed_dims, setup.heads, rotary=True, lepe=5, gate='proj')
    )
    hw_shape, tables = setup.hw_shape, setup.rotary_tables()
    x = setup.leaf(setup.randn(setup.batch, setup.num_tokens, setup.embed_dims))
    x_map = setup.leaf(tokens_to_map(x, hw_shape).contiguous())
    return {
        OURS: Baseline(lambda: ours(x, hw_shape), (x,), tuple(ours.parameters())),
        'channels first': Baseline(
            lambda: first(x_map, tables),
            (x_map,),
            tuple(first.parameters()),
            as_first=map_to_tokens,
        ),
        'SDPA softmax': Baseline(
            lambda: softmax(x, hw_shape),
            (x,),
            tuple(softmax.parameters()),
            same=False,
            quadratic=True,
        ),
    }


@case(
    'linear',
    'operator',
    'Linear attention of positive features; linear in the tokens, SDPA is quadratic.',
)
def _linear(setup: Setup) -> Baselines:
    return operator_baselines(
        setup,
        lambda *inputs, backend: linear_attention(*inputs, backend=backend),
        setup.features(),
        textbook.linear,
        flash_bla.linear,
    )


@case('linear-elu+1', 'operator', 'Linear attention with the feature map elu + 1 inside.')
def _linear_elu1(setup: Setup) -> Baselines:
    return operator_baselines(
        setup,
        partial(linear_attention, feature_map='elu+1'),
        setup.qkv(),
        lambda q, k, v: textbook.linear(F.elu(q) + 1, F.elu(k) + 1, v),
    )


@case('additive', 'operator', 'Additive attention; linear in the tokens, SDPA is quadratic.')
def _additive(setup: Setup) -> Baselines:
    weights = [setup.leaf(setup.randn(setup.heads, setup.head_dim)) for _ in range(2)]
    return operator_baselines(
        setup,
        lambda *inputs, backend: additive_attention(*inputs, backend=backend),
        (*setup.qkv(), *weights),
        textbook.additive,
    )


MAX_DISTANCE = 4


@case(
    'ripple',
    'operator',
    f'Ripple attention, R = {MAX_DISTANCE}: tiles against summed-area tables (the algorithm of '
    'the paper, with a backward pass of its own, and as a textbook has it with that of autograd), '
    'plain linear attention of the same features and softmax attention.',
)
def _ripple(setup: Setup) -> Baselines:
    q, k, v = setup.features()
    logits = setup.randn(setup.batch, setup.num_tokens, setup.heads, MAX_DISTANCE)
    weights = setup.leaf(stick_breaking(logits).transpose(1, 2))

    def ripple(**options) -> Baseline:
        return Baseline(
            lambda: ripple_attention(q, k, v, weights, hw_shape=setup.hw_shape, **options),
            (q, k, v, weights),
        )

    baselines = {OURS: ripple()}
    if setup.device.type == 'cuda':
        baselines[f'{OURS} torch'] = ripple(backend='torch')
    baselines['summed-area tables'] = ripple(backend='sat')
    if setup.device.type == 'cpu':  # takes hundreds of GB at the sizes for a GPU
        baselines['tables, textbook'] = Baseline(
            lambda: textbook.ripple_tables(q, k, v, weights, setup.hw_shape), (q, k, v, weights)
        )
    baselines['linear'] = Baseline(lambda: linear_attention(q, k, v), (q, k, v), same=False)
    baselines['SDPA softmax'] = Baseline(
        lambda: F.scaled_dot_product_attention(q, k, v), (q, k, v), same=False, quadratic=True
    )
    return baselines


NUM_ANCHORS, DECAY = 64, 0.1
# Reduction in the first stage of SegFormer.
SR_RATIO = 8


@case(
    'random-walk',
    'operator',
    f'Random walks between {NUM_ANCHORS} anchors, decay {DECAY}, against the order of the paper '
    'with an inverse; linear in the tokens, SDPA is quadratic.',
)
def _random_walk(setup: Setup) -> Baselines:
    anchors = [
        setup.leaf(0.1 * setup.randn(setup.heads, NUM_ANCHORS, setup.head_dim)) for _ in range(2)
    ]
    return operator_baselines(
        setup,
        lambda *inputs, backend: random_walk_attention(*inputs, decay=DECAY, backend=backend),
        (*setup.qkv(), *anchors),
        lambda *inputs: textbook.random_walk(*inputs, decay=DECAY),
    )


@case(
    'random-walk-layer',
    'layer',
    "RWGKA against SegFormer's own attention (keys and values reduced "
    f'{SR_RATIO}x{SR_RATIO} times, quadratic all the same) and full softmax attention. With '
    '--heads 1 --head-dim 32 it is the first stage of SegFormer-B0; 65k tokens are a 1024x1024 '
    'image.',
)
def _random_walk_layer(setup: Setup) -> Baselines:
    from mmlinattn.models.layers import RWGKA, RWGKP, SoftmaxAttention, SpatialReductionAttention

    x = setup.leaf(setup.randn(setup.batch, setup.num_tokens, setup.embed_dims))

    def baseline(kind: type, quadratic: bool = False, **options) -> Baseline:
        layer = setup.module(kind(setup.embed_dims, setup.heads, **options))
        return Baseline(
            lambda: layer(x, setup.hw_shape),
            (x,),
            tuple(layer.parameters()),
            same=False,
            quadratic=quadratic,
        )

    return {
        'RWGKA': baseline(RWGKA, num_anchors=NUM_ANCHORS, decay=DECAY),
        'RWGKP': baseline(RWGKP, num_anchors=NUM_ANCHORS, decay=DECAY),
        'one step': baseline(RWGKA, num_anchors=NUM_ANCHORS, steps=1),
        'spatial reduction': baseline(SpatialReductionAttention, quadratic=True, sr_ratio=SR_RATIO),
        'SDPA softmax': baseline(SoftmaxAttention, quadratic=True),
    }


# One number per pair of tokens and head takes 4 GB at this size, and would take 34 GB at 65k.
PAIRED_TOKENS = 2**14


def _attentions() -> Dict[str, type]:
    """Return the attentions of this package by name, softmax attention first."""
    from mmlinattn.models.layers import BaseAttention, registered_subclasses

    found = registered_subclasses(BaseAttention).items()
    kinds = {
        name: kind for name, kind in found if kind.__module__.startswith('mmlinattn.models.layers')
    }
    return {'SoftmaxAttention': kinds.pop('SoftmaxAttention'), **kinds}


@case(
    'attentions',
    'layer',
    'Every attention with its defaults, projections included; the table of docs/attentions.md.',
)
def _attention_layers(setup: Setup) -> Baselines:
    from mmlinattn.models.layers import NonLocalBlock, tokens_to_map

    x = setup.leaf(setup.randn(setup.batch, setup.num_tokens, setup.embed_dims))
    channels_first = setup.leaf(tokens_to_map(x, setup.hw_shape))

    def baseline(
        layer: nn.Module, call: Callable[[], Tensor], of: Tensor, quadratic: bool
    ) -> Baseline:
        return Baseline(call, (of,), tuple(layer.parameters()), same=False, quadratic=quadratic)

    baselines = {}
    for name, kind in _attentions().items():
        if 'N^2' in kind.info.memory and setup.num_tokens > PAIRED_TOKENS:
            continue
        layer = setup.module(kind(setup.embed_dims, setup.heads))
        call = partial(layer, x, setup.hw_shape)
        baselines[name] = baseline(layer, call, x, 'N^2' in kind.info.time)
    block = setup.module(NonLocalBlock(setup.embed_dims))
    baselines['NonLocalBlock'] = baseline(
        block, partial(block, channels_first), channels_first, True
    )
    return baselines


def _backbone(setup: Setup, arch: str, released: bool) -> Baselines:
    """Return RAVLT as released, or with RALA in all stages, as baselines."""
    from mmlinattn.models.backbones import RAVLT
    from mmlinattn.models.backbones.ravlt import RELEASED_ATTENTIONS
    from mmlinattn.models.layers import optimize_for_cpu

    from .baselines.channels_first import ChannelsFirstRAVLT

    attn_cfg = RELEASED_ATTENTIONS if released else 'RALA'
    ours = setup.module(RAVLT(arch, attn_cfg, drop_path_rate=0.0, norm_cfg=dict(type='BN')))
    image = setup.leaf(setup.randn(setup.batch, 3, *setup.hw_shape))

    def baseline(model: nn.Module) -> Baseline:
        return Baseline(lambda: model(image), (image,), tuple(model.parameters()))

    baselines = {
        OURS: baseline(ours),
        'channels first': baseline(setup.module(ChannelsFirstRAVLT(ours))),
    }
    if setup.device.type == 'cpu':
        plain = optimize_for_cpu(copy.deepcopy(ours), enabled=False)
        baselines['without optimize_for_cpu'] = baseline(plain)
    if released:
        fused = ChannelsFirstRAVLT(ours, sdpa=True)
        baselines['channels first, SDPA'] = baseline(setup.module(fused))
    return baselines


@case(
    'ravlt-s',
    'backbone',
    'RAVLT-S as released (softmax attention in stages 3 and 4) against the same network in the '
    'layout of its released code, with softmax attention written out as there, and with SDPA.',
)
def _ravlt(setup: Setup) -> Baselines:
    return _backbone(setup, 'small', released=True)


@case(
    'ravlt-s-linear',
    'backbone',
    'RAVLT-S with RALA in all four stages, against the same network channels first.',
)
def _ravlt_linear(setup: Setup) -> Baselines:
    return _backbone(setup, 'small', released=False)


MIT_ATTENTIONS = {
    'RWGKA': dict(type='RWGKA', num_anchors=NUM_ANCHORS, decay=DECAY),
    'RWGKP': dict(type='RWGKP', num_anchors=NUM_ANCHORS, decay=DECAY),
    'one step': dict(type='RWGKA', num_anchors=NUM_ANCHORS, decay=DECAY, steps=1),
    'two steps': dict(type='RWGKA', num_anchors=NUM_ANCHORS, decay=DECAY, steps=2),
    'RALA': dict(type='RALA', rotary=False, lepe=0),
    'spatial reduction': dict(type='SpatialReductionAttention'),
}


@case(
    'mit-b0',
    'backbone',
    "SegFormer's encoder MiT-B0 with random walks and RALA in all stages, against its own spatial "
    'reduction.',
)
def _mit(setup: Setup) -> Baselines:
    from mmlinattn.models.backbones import MixTransformer

    image = setup.leaf(setup.randn(setup.batch, 3, *setup.hw_shape))

    def baseline(attn_cfg: dict) -> Baseline:
        model = setup.module(MixTransformer('b0', attn_cfg, drop_path_rate=0.0))
        return Baseline(lambda: model(image), (image,), tuple(model.parameters()), same=False)

    return {name: baseline(attn_cfg) for name, attn_cfg in MIT_ATTENTIONS.items()}


# The models of figures 2 and 4 of the ripple paper; heads of 32 channels as in its other models.
VIT_PATCH = 16
RIPPLE_VIT = dict(embed_dims=96, num_heads=3, patch_size=VIT_PATCH)


def _vit_map(setup: Setup) -> List[int]:
    return [-(-side // VIT_PATCH) for side in setup.hw_shape]


def _vits(
    setup: Setup,
    attn_cfgs: 'Dict[str, AttnCfg]',
    same: Sequence[str] = (),
    quadratic: Sequence[str] = (),
) -> Baselines:
    """Return vision transformers with these attentions; those of ``same`` have equal weights.

    Those are compared in float64: rounding of float32 grows with the layers.
    """
    from mmlinattn.models.backbones import ViT

    image = setup.leaf(setup.randn(setup.batch, 3, *setup.hw_shape))
    img_size = [VIT_PATCH * cells for cells in _vit_map(setup)]
    models = {
        name: ViT(RIPPLE_VIT, attn_cfg, img_size=img_size, with_cls_token=False)
        for name, attn_cfg in attn_cfgs.items()
    }
    for name in same:
        models[name].load_state_dict(models[same[0]].state_dict())

    def baseline(name: str) -> Baseline:
        model = setup.module(models[name])
        return Baseline(
            lambda: model(image),
            (image,),
            tuple(model.parameters()),
            same=name in same and setup.dtype == torch.float64,
            quadratic=name in quadratic,
        )

    return {name: baseline(name) for name in models}


def _ripple_cfg(max_distance: int = MAX_DISTANCE, **options) -> dict:
    return dict(type='RippleAttention', max_distance=max_distance, **options)


@case(
    'ripple-vit',
    'backbone',
    'Vision transformers of 12 layers and 96 channels, patches of 16. Ripple attention with '
    f'R = {MAX_DISTANCE} in all layers: by tiles (the default), summed-area tables and key by key; '
    'linear and softmax attention (figure 2 of the ripple paper; use --batch 4).',
    stride=VIT_PATCH,
)
def _ripple_vit(setup: Setup) -> Baselines:
    algorithms = dict(tiles='tile', tables='sat', naive='naive')
    ripple = {name: _ripple_cfg(backend=backend) for name, backend in algorithms.items()}
    others = {'linear': 'LinearAttention', 'SDPA softmax': 'SoftmaxAttention'}
    return _vits(setup, {**ripple, **others}, tuple(ripple), ['SDPA softmax'])


@case(
    'ripple-groups',
    'backbone',
    f'The transformers of ripple-vit with other rings: R = {MAX_DISTANCE}; logarithmic ones over '
    'the whole map, which tables compute; one for each distance (dense), by the default algorithm '
    'and by tables (figure 4 of the ripple paper; use --batch 4).',
    stride=VIT_PATCH,
)
def _ripple_groups(setup: Setup) -> Baselines:
    farthest = max(_vit_map(setup)) - 1
    return _vits(
        setup,
        {
            f'R = {MAX_DISTANCE}': _ripple_cfg(),
            'logarithmic': _ripple_cfg(farthest.bit_length(), groups='log'),
            'dense': _ripple_cfg(farthest),
            'dense, tables': _ripple_cfg(farthest, backend='sat'),
        },
        # Their time grows with the rings, too: this estimate is an upper bound.
        quadratic=['dense', 'dense, tables'],
    )


@case('ravlt-nano', 'backbone', 'The smallest network of the quick start: for trying the suite.')
def _ravlt_nano(setup: Setup) -> Baselines:
    arch = dict(embed_dims=(32, 64, 128, 256), depths=(1, 1, 2, 1), num_heads=(1, 2, 4, 8))
    return _backbone(setup, arch, released=True)
