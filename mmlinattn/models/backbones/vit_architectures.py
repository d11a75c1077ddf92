"""Named architectures of ViT."""

from typing import Any, Dict


def _arch(embed_dims: int, num_heads: int, *shared: Dict[str, Any], **own: Any) -> Dict[str, Any]:
    merged: Dict[str, Any] = dict(embed_dims=embed_dims, num_heads=num_heads)
    for options in (*shared, own):
        merged.update(options)
    return merged


# The hub of DINOv2 resizes positions with an offset, its models with registers by antialiasing.
DINOV2 = dict(patch_size=14, img_size=518, layer_scale_init=1e-5, pos_resize='offset')
REGISTERS = dict(num_registers=4, pos_resize='antialias')
GIANT = dict(depth=40, ffn='swiglu', mlp_ratio=8 / 3)
DINOV3 = dict(
    num_registers=4, pos_embed=False, rotary=dict(base=100.0, rescale=2.0), key_bias=False,
    layer_scale_init=1e-5, norm_eps=1e-5,
)  # fmt: skip
# Positions of the last three are resized as in timm; the releases have none of other sizes.
DEIT3 = dict(layer_scale_init=1e-4, pos_resize='antialias')
CLIP = dict(
    pre_norm=True, patch_bias=False, act='quick_gelu', norm_eps=1e-5, pos_resize='antialias'
)
SIGLIP = dict(with_cls_token=False, act='gelu_tanh', pos_resize='antialias')
# ViT³ has these with attn_cfg='TTTAttention'.
VITTT = dict(with_cls_token=False, pos_embed=False, cpe=True)
# VECA has these with attn_cfg='CoreAttention'; its class token is the first core.
VECA = dict(pos_embed=False, ffn='swiglu', mlp_ratio=2.66667, norm_eps=1e-5)
LARGE = dict(depth=24)

ARCHITECTURES: Dict[str, Dict[str, Any]] = {
    # Table 1 of the ViT paper and table 1 of the DeiT paper; stochastic depth as released.
    'deit-t': _arch(192, 3, drop_path_rate=0.1),
    'deit-s': _arch(384, 6, drop_path_rate=0.1),
    'deit-b': _arch(768, 12, drop_path_rate=0.1),
    'b16': _arch(768, 12),
    'b32': _arch(768, 12, patch_size=32),
    'l16': _arch(1024, 16, LARGE),
    'h14': _arch(1280, 16, depth=32, patch_size=14),
    # Stochastic depth of the 800 epochs on ImageNet-1K of the release.
    'deit3-s': _arch(384, 6, DEIT3, drop_path_rate=0.05),
    'deit3-m': _arch(512, 8, DEIT3),
    'deit3-b': _arch(768, 12, DEIT3, drop_path_rate=0.2),
    'deit3-l': _arch(1024, 16, DEIT3, LARGE, drop_path_rate=0.45),
    'deit3-h': _arch(1280, 16, DEIT3, depth=32, patch_size=14, drop_path_rate=0.6),
    'dinov2-s': _arch(384, 6, DINOV2),
    'dinov2-b': _arch(768, 12, DINOV2),
    'dinov2-l': _arch(1024, 16, DINOV2, LARGE),
    'dinov2-g': _arch(1536, 24, DINOV2, GIANT),
    'dinov2-s-reg': _arch(384, 6, DINOV2, REGISTERS),
    'dinov2-b-reg': _arch(768, 12, DINOV2, REGISTERS),
    'dinov2-l-reg': _arch(1024, 16, DINOV2, REGISTERS, LARGE),
    'dinov2-g-reg': _arch(1536, 24, DINOV2, REGISTERS, GIANT),
    'dinov3-s': _arch(384, 6, DINOV3),
    'dinov3-s-plus': _arch(384, 6, DINOV3, ffn='swiglu'),
    'dinov3-b': _arch(768, 12, DINOV3),
    'dinov3-l': _arch(1024, 16, DINOV3, LARGE),
    'dinov3-h-plus': _arch(1280, 20, DINOV3, depth=32, ffn='swiglu'),
    'clip-b32': _arch(768, 12, CLIP, patch_size=32),
    'clip-b16': _arch(768, 12, CLIP),
    'clip-l14': _arch(1024, 16, CLIP, LARGE, patch_size=14),
    'siglip-b16': _arch(768, 12, SIGLIP),
    'vittt-t': _arch(192, 6, VITTT),
    'vittt-s': _arch(384, 6, VITTT, drop_path_rate=0.1),
    'vittt-b': _arch(768, 12, VITTT, drop_path_rate=0.4),
    'veca-s': _arch(384, 6, VECA),
    'veca-s-plus': _arch(384, 6, VECA, mlp_ratio=4),
    'veca-b': _arch(768, 12, VECA),
    'veca-l': _arch(1024, 16, VECA, LARGE),
}

# Keys that an architecture may leave out.
DEFAULTS: Dict[str, Any] = dict(
    depth=12, mlp_ratio=4, patch_size=16, drop_path_rate=0.0, img_size=224, with_cls_token=True,
    num_registers=0, pos_embed=True, pos_resize='bicubic', rotary=False, ffn='mlp', act='gelu',
    layer_scale_init=None, pre_norm=False, final_norm=True, norm_eps=1e-6, patch_bias=True,
    key_bias=True, cpe=False,
)  # fmt: skip
