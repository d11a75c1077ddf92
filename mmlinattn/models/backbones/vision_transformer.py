"""ViT with any attention: DeiT, DINOv2, DINOv3, CLIP, SigLIP."""

from types import SimpleNamespace
from typing import Any, List, Optional, Sequence, Tuple, Union

import torch
from mmengine.model import ModuleList
from mmengine.registry import MODELS
from torch import Tensor, nn

from ...ops.common.checks import check_sides
from ...ops.common.packed import PackedShapes
from ...utils import check_integer
from ..layers import AttnCfg, AttnCfgs, CoreCoordinates
from ..layers.residual import drop_path_rates
from ..layers.token_layout import HwShape, split_images
from .base import Backbone, Part
from .core_tokens import CoreTokens
from .patch_embed import new_tokens, prepend_tokens
from .transformer_block import TransformerBlock
from .vit_architectures import ARCHITECTURES, DEFAULTS
from .vit_patch_embed import ViTPatchEmbed


@MODELS.register_module()
class ViT(Backbone):
    """Vision transformer (Dosovitskiy et al., ICLR 2021; DeiT: Touvron et al., ICML 2021) with any
    attention.

    With softmax attention, the default, outputs equal those of the releases: DeiT III (Touvron et
    al., ECCV 2022), DINOv2 (Oquab et al., 2023), DINOv3 (Siméoni et al., 2025), CLIP (Radford et
    al., ICML 2021) and SigLIP (Zhai et al., ICCV 2023). ``convert(..., source='dinov2')`` and its
    like rename their weights.

    Args:
        arch: a name in ``ViT.architectures``, such as ``'deit-s'``, ``'b16'`` or ``'dinov3-s'``; or
            by size ``'tiny'``, ``'small'``, ``'base'`` (DeiT), ``'large'``, ``'huge'`` (ViT); or a
            dict with ``embed_dims`` and ``num_heads`` and optionally ``depth``, ``mlp_ratio``,
            ``patch_size``, ``drop_path_rate``, any of the options below whose default is None,
            ``norm_eps``, ``patch_bias`` (bias of the patches), ``key_bias`` (bias of the keys of
            softmax attention), ``final_norm`` (norm of the last output) and ``cpe`` (conditional
            position encoding in every layer, as in ViT³).
        attn_cfg: see :class:`Backbone`. With a class token or registers it must support extra
            tokens, with ``rotary`` this option. ``'CoreAttention'`` adds the cores that its class
            token and registers lack, see :class:`CoreTokens`; VECA has it with ``'veca-s'``,
            ``'veca-s-plus'``, ``'veca-b'`` and ``'veca-l'``.
        img_size: side, or (height, width), of the images that the position embedding is for; a
            multiple of the patch size. Positions are resized to other sizes, which is logged once.
            Loading a checkpoint resizes its positions by their grid, saved as ``embed.pos_grid``.
            Without it the number of positions must match, or both grids must be square. None, as of
            the options below, for the value of the architecture: 224, for DINOv2 518.
        in_channels: channels of the image.
        with_cls_token: prepend a class token to the patches; True.
        cls_token_from: first layer with the class token, 0 by default. From a later layer on, as
            in ConViT, it has no position, and earlier layers may use attentions that do not
            support extra tokens.
        pos_embed: add learnt positions; True.
        ffn: ``'mlp'``, ``'swiglu'``, or ``'mix'`` with a depth-wise convolution in every
            feed-forward layer, which skips the extra tokens; ``'mlp'``. Its hidden channels are
            ``mlp_ratio`` times the channels.
        layer_scale_init: initial value of layer scales, as in DeiT III (1e-4) and DINOv2 (1e-5);
            no scales.
        out_indices: layers to return, by default the last, which is returned after the final norm.
        num_registers: learnt tokens between class token and patches, without a position; 0.
        pos_resize: ``'bicubic'``, ``'antialias'`` or ``'offset'``, see
            :func:`mmlinattn.models.backbones.vit_patch_embed.resize_positions`; ``'bicubic'``.
        rotary: rotary position in all layers that do not set it, see :class:`BaseAttention`; False.
        act: activation of ``'mlp'``: ``'gelu'``, ``'quick_gelu'`` or ``'gelu_tanh'``; ``'gelu'``.
        pre_norm: norm of the tokens before the first layer, as in CLIP; False.
        out_type: ``'featmap'``, or for heads of MMPretrain ``'avg_featmap'`` (mean of the patches)
            or ``'cls_token'``.
        kwargs: options of :class:`Backbone`; ``frozen_stages`` counts layers, 0 freezes ``embed``.

    Inputs:
        (B, in_channels, H, W), padded with zeros, right and bottom, to whole patches as in
        MMPretrain; or a list of images (in_channels, H_i, W_i) of different sizes. Their tokens are
        packed, see :class:`mmlinattn.ops.PackedShapes`: no padding is computed, and each image has
        the output that it has alone.

    Returns:
        tuple of (B, C, ceil(H / p), ceil(W / p)), contiguous, or (B, C). Of a list of images a
        tuple of lists of (1, C, ceil(H_i / p), ceil(W_i / p)), or of (B, C).

    Raises:
        ValueError: ``out_type='cls_token'`` with a layer without class token, ``cls_token_from`` is
            not a layer, the patch size does not divide the image size, an attention does not
            support extra tokens, rotary position or packed images, loaded positions cannot be
            resized, a listed image is empty or has other channels; layers have different numbers
            of cores, or cores and a late class token; an option is unknown, out of range, or
            without effect (``act``).
        KeyError: the attention is unknown.

    Example:
        >>> ripple = ['RippleAttention'] * 9 + ['LinearAttention'] * 3
        >>> model = ViT('deit-t', ripple, with_cls_token=False, out_type='avg_featmap').eval()
        >>> [tuple(out.shape) for out in model(torch.randn(1, 3, 224, 224))]
        [(1, 192)]
        >>> model = ViT('deit-t', 'RALA', pos_embed=False, out_type='cls_token').eval()
        >>> [tuple(out.shape) for out in model([torch.randn(3, 64, 96), torch.randn(3, 80, 48)])]
        [(2, 192)]
        >>> model = ViT('dinov3-s', dict(default='MALA', softmax=['last4'])).eval()
        >>> [tuple(out.shape) for out in model(torch.randn(1, 3, 64, 96))]
        [(1, 384, 4, 6)]
    """

    architectures = ARCHITECTURES
    arch_sizes = dict(tiny='deit-t', small='deit-s', base='deit-b', large='l16', huge='h14')
    arch_required = ('embed_dims', 'num_heads')
    arch_defaults = DEFAULTS
    stage_name = 'layer'
    has_cls_token = True

    def __init__(
        self,
        arch: Union[str, dict] = 'deit-t',
        attn_cfg: AttnCfgs = 'SoftmaxAttention',
        img_size: Union[int, Sequence[int], None] = None,
        in_channels: int = 3,
        with_cls_token: Optional[bool] = None,
        cls_token_from: int = 0,
        pos_embed: Optional[bool] = None,
        ffn: Optional[str] = None,
        layer_scale_init: Optional[float] = None,
        out_indices: Optional[Sequence[int]] = None,
        num_registers: Optional[int] = None,
        pos_resize: Optional[str] = None,
        rotary: Union[bool, dict, None] = None,
        act: Optional[str] = None,
        pre_norm: Optional[bool] = None,
        **kwargs,
    ) -> None:
        if out_indices is None:
            out_indices = (self._architecture(arch)['depth'] - 1,)
        super().__init__(arch, attn_cfg, out_indices, **kwargs)
        given = dict(
            img_size=img_size, with_cls_token=with_cls_token, num_registers=num_registers,
            pos_embed=pos_embed, pos_resize=pos_resize, rotary=rotary, ffn=ffn, act=act,
            layer_scale_init=layer_scale_init, pre_norm=pre_norm,
        )  # fmt: skip
        self.arch.update({name: value for name, value in given.items() if value is not None})
        options = SimpleNamespace(**self.arch)
        if act is not None and options.ffn in ('mix', 'swiglu'):
            raise ValueError(
                f"{act=} has no effect with ffn={options.ffn!r}, only with ffn='mlp': leave act out"
            )
        dims, depth, patch_size = options.embed_dims, options.depth, options.patch_size
        with_cls_token = options.with_cls_token
        if self.out_type == 'cls_token' and not with_cls_token:
            raise ValueError("out_type='cls_token' needs with_cls_token=True")
        layers = range(depth if with_cls_token else 1)
        if type(cls_token_from) is not int or cls_token_from not in layers:
            raise ValueError(
                f'cls_token_from must be a layer in 0..{depth - 1}, or 0 without a class token, '
                f'got {cls_token_from!r}'
            )
        if self.out_type == 'cls_token' and min(self.out_indices) < cls_token_from:
            raise ValueError(
                f"out_type='cls_token' needs out_indices of at least {cls_token_from=}, got "
                f'{self.out_indices}'
            )
        height, width = check_sides(options.img_size, 'img_size')
        if height % patch_size or width % patch_size:
            raise ValueError(
                f'img_size must be a multiple of patch_size={patch_size}, got {options.img_size}'
            )
        grid = (height // patch_size, width // patch_size) if options.pos_embed else None
        with_first = with_cls_token and not cls_token_from
        self.embed = self.build_embed(
            in_channels, dims, patch_size, grid, with_first, num_registers=options.num_registers,
            pos_resize=options.pos_resize, bias=options.patch_bias,
            norm_eps=options.norm_eps if options.pre_norm else None,
        )  # fmt: skip
        self.cls_token_from, self.cls_token = cls_token_from, None
        if 0 < cls_token_from < self.num_built:
            self.cls_token = new_tokens(dims, 1)
        self.layers = ModuleList(
            self.build_layer(
                dims, options.num_heads, options.mlp_ratio,
                _with_rotary(self.layer_attn_cfgs[i], options.rotary), *self.drop_paths[i],
                eps=options.norm_eps, ffn=options.ffn, act=options.act,
                layer_scale_init=options.layer_scale_init, key_bias=options.key_bias,
                **(dict(cpe=True) if options.cpe else {}),
            )
            for i in range(self.num_built)
        )  # fmt: skip
        self.cores = self._build_cores()
        last = options.final_norm and self.num_built == depth
        self.norm = nn.LayerNorm(dims, eps=options.norm_eps) if last else None
        self.finish()

    def build_embed(self, *args, **kwargs) -> ViTPatchEmbed:
        """Return the patch embedding, see :class:`ViTPatchEmbed`."""
        return ViTPatchEmbed(*args, **kwargs)

    def build_layer(self, *args, **kwargs) -> nn.Module:
        """Return a layer, see :class:`TransformerBlock`."""
        return TransformerBlock(*args, own_cores=False, **kwargs)

    def _build_cores(self) -> Optional[CoreTokens]:
        """Return the cores of the layers that have core attention, or None."""
        attns = [layer.attn for layer in self.layers if layer.attn.num_carried_cores]
        if not attns:
            return None
        first = attns[0]
        for name in ('num_carried_cores', 'nested', 'coordinates'):
            values = [getattr(attn, name) for attn in attns]
            if any(value != values[0] for value in values):
                raise ValueError(
                    'all layers share the same cores: set one num_cores, nested and rotary in '
                    f'attn_cfg, got {name.replace("carried_", "")}={values}'
                )
        if self.cls_token_from:
            raise ValueError(
                'the class token is one of the cores, which begin before the first layer: set '
                f'cls_token_from=0, got {self.cls_token_from}'
            )
        return CoreTokens(first, self.embed.num_extra_tokens, self.num_built)

    def _architecture(self, arch: Union[str, dict]) -> dict:
        arch = super()._architecture(arch)
        for name in ('embed_dims', 'num_heads', 'depth', 'patch_size'):
            arch[name] = check_integer(f'arch[{name!r}]', arch[name])
        return arch

    def stochastic_depth(self, rate: float) -> List[List[float]]:
        return drop_path_rates(rate, (1,) * self.arch['depth'])

    def stem_layer(self) -> nn.Module:
        return self.embed

    def layer_groups(self) -> List[List[Part]]:
        cores = self.cores.layer_parts(0) if self.cores is not None else []
        later = (self.stage_parts(i) for i in range(1, self.num_built))
        blocks = ([part for part in parts if part is not self.norm] for parts in later)
        return [[self.embed, *cores], [self.layers[0]], *blocks]

    def stage_parts(self, i: int) -> List[Part]:
        last = self.norm is not None and i == self.num_built - 1
        token = [self.cls_token] if self.cls_token is not None and i == self.cls_token_from else []
        cores = self.cores.layer_parts(i) if self.cores is not None else []
        return [*token, *cores, self.layers[i], *([self.norm] if last else [])]

    def num_extra_tokens(self, i: int) -> int:
        if self.cores is not None:
            return self.cores.count
        late = self.cls_token is not None and i >= self.cls_token_from
        return self.embed.num_extra_tokens + int(late)

    def forward(self, x: Union[Tensor, List[Tensor], Tuple[Tensor, ...]]) -> Tuple[Any, ...]:
        if isinstance(x, (list, tuple)):
            tokens, hw_shape = self._embed_packed(x)
        else:
            self.check_input(x)
            tokens, hw_shape = self.embed(x.contiguous(memory_format=torch.channels_last))
        outs, num_extra, coords = [], self.embed.num_extra_tokens, ()
        if self.cores is not None:
            num_extra = self.cores.draw_count()
            tokens, raw, of_map = self.cores.start(tokens, hw_shape, num_extra)
        for i, layer in enumerate(self.layers):
            if self.cls_token is not None and i == self.cls_token_from:
                images = split_images(tokens, hw_shape, num_extra)
                parts = [prepend_tokens(self.cls_token, part) for part, _ in images]
                tokens, num_extra = torch.cat(parts, 1), num_extra + 1
            if self.cores is not None:
                raw = self.cores.move(i, raw, tokens, hw_shape, num_extra)
                coords = (CoreCoordinates(raw.tanh(), of_map),)
            tokens = self.run_block(layer, tokens, hw_shape, num_extra, *coords)
            if i in self.out_indices:
                norm = self.norm if i == self.num_built - 1 else None
                out = tokens if norm is None else norm(tokens)
                outs.append(self._format(out, hw_shape, num_extra))
        return tuple(outs)

    def _embed_packed(self, images: Sequence[Tensor]) -> Tuple[Tensor, PackedShapes]:
        """Embed images (in_channels, H_i, W_i) one by one and pack their tokens, (1, T, C)."""
        channels = self.embed.proj.in_channels
        if not images:
            raise ValueError('the input must have at least one image, got an empty list')
        for i, image in enumerate(images):
            if image.dim() != 3 or image.shape[0] != channels or not image.numel():
                raise ValueError(
                    f'image {i} must have shape ({channels}, H, W) and pixels, got '
                    f'{tuple(image.shape)}'
                )
        parts = [
            self.embed(image[None].contiguous(memory_format=torch.channels_last))
            for image in images
        ]
        packed = PackedShapes([hw_shape for _, hw_shape in parts])
        return torch.cat([tokens for tokens, _ in parts], 1), packed

    def _format(
        self, tokens: Tensor, hw_shape: HwShape, num_extra: int
    ) -> Union[Tensor, List[Tensor]]:
        images = split_images(tokens, hw_shape, num_extra)
        outs = [self.format_output(part, shape, num_extra) for part, shape in images]
        if not isinstance(hw_shape, PackedShapes):
            return outs[0]
        return outs if self.out_type == 'featmap' else torch.cat(outs)


def _with_rotary(attn_cfg: AttnCfg, rotary: Union[bool, dict]) -> AttnCfg:
    """Return a config with the rotary position, unless it sets one itself."""
    if rotary is False or rotary is None:
        return attn_cfg
    own = attn_cfg if isinstance(attn_cfg, dict) else dict(type=attn_cfg)
    return dict(dict(rotary=rotary), **own)
