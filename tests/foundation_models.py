"""Models of timm and transformers with weights by a formula, and what they compute.

``python -m tests.foundation_models`` writes ``tests/golden/foundation.safetensors`` where both are
installed.
"""

import json
import re
import zlib
from functools import partial
from pathlib import Path
from typing import Tuple

import torch
from torch import nn

from mmlinattn.checkpoints import convert
from mmlinattn.models.backbones import ViT
from mmlinattn.models.backbones.vit_architectures import (
    CLIP,
    DEIT3,
    DINOV2,
    DINOV3,
    REGISTERS,
    SIGLIP,
)

SIDE, PATCH = 12, 4
SIZES = ((SIDE, SIDE), (8, 12), (12, 20))  # that of the positions, a smaller and a larger one
SMALL = dict(patch_size=PATCH, img_size=SIDE, depth=2)
GATED = dict(ffn='swiglu', mlp_ratio=2.5)
BICUBIC, ANTIALIAS = dict(pos_resize='bicubic'), dict(pos_resize='antialias')


def renamed(state_dict: dict, *pairs: Tuple[str, str]) -> dict:
    """Replace regular expressions in the names of weights."""
    names = {}
    for name, value in state_dict.items():
        for ours, theirs in pairs:
            name = re.sub(ours, theirs, name)
        names[name] = value
    return names


def timm_vit(prefix, **kwargs):
    from timm.models.vision_transformer import VisionTransformer

    options = dict(img_size=SIDE, patch_size=PATCH, embed_dim=128, depth=2, num_heads=2)
    model = VisionTransformer(**options, dynamic_img_size=True, **kwargs)
    return model, lambda x: model.forward_features(x)[:, prefix:]


def timm_gated(prefix, **kwargs):
    from timm.layers import SwiGLUPacked

    return timm_vit(prefix, mlp_layer=SwiGLUPacked, act_layer=nn.SiLU, mlp_ratio=5, **kwargs)


def timm_eva(**kwargs):
    from timm.models.eva import Eva

    model = Eva(
        img_size=SIDE, patch_size=PATCH, dynamic_img_size=True, embed_dim=128, depth=2,
        num_heads=2, num_classes=0, init_values=1e-5, rope_type='dinov3', rope_temperature=100,
        rope_rotate_half=True, use_rot_pos_emb=True, use_abs_pos_emb=False, num_reg_tokens=4,
        use_fc_norm=False, norm_layer=partial(nn.LayerNorm, eps=1e-5), **kwargs,
    )  # fmt: skip
    return model, lambda x: model.forward_features(x)[:, 5:]


def transformers_vit(name, prefix, **kwargs):
    import transformers

    cfg = getattr(transformers, f'{name}Config')(
        hidden_size=128, num_hidden_layers=2, num_attention_heads=2, image_size=SIDE,
        patch_size=PATCH, **kwargs,
    )  # fmt: skip
    model = getattr(transformers, f'{name}Model')(cfg)
    known = dict(interpolate_pos_encoding=True) if 'Vision' in name else {}

    def features(x):
        tokens = model(x, **known).last_hidden_state
        # Of CLIP it is the only one without the last norm.
        tokens = model.vision_model.post_layernorm(tokens) if 'CLIP' in name else tokens
        return tokens[:, prefix:]

    return model, features


MLP = dict(intermediate_size=512)
EPS = partial(nn.LayerNorm, eps=1e-5)
# Model of the library; source; architecture here.
CASES = {
    'timm.dinov2': (
        partial(timm_vit, 1, num_classes=0, init_values=1e-5), 'dinov2', (DINOV2, ANTIALIAS)),
    'timm.dinov2-gated-reg': (
        partial(timm_gated, 5, num_classes=0, init_values=1e-5, reg_tokens=4, no_embed_class=True),
        'dinov2', (DINOV2, REGISTERS, GATED)),
    'timm.dinov3': (partial(timm_eva, qkv_bias=True), 'dinov3', (DINOV3,)),
    'timm.dinov3-no-bias': (partial(timm_eva, qkv_bias=False), 'dinov3', (DINOV3,)),
    'timm.dinov3-gated': (
        partial(timm_eva, swiglu_mlp=True, mlp_ratio=2.5), 'dinov3', (DINOV3, GATED)),
    'timm.deit3': (
        partial(timm_vit, 1, num_classes=9, init_values=1e-4, no_embed_class=True),
        'deit3', (DEIT3,)),
    'timm.clip': (
        partial(timm_vit, 1, num_classes=9, pre_norm=True, act_layer='quick_gelu', norm_layer=EPS),
        'clip', (CLIP,)),
    'timm.siglip': (
        partial(timm_vit, 0, num_classes=0, class_token=False, global_pool='map',
                act_layer='gelu_tanh'), 'siglip', (SIGLIP,)),
    'transformers.dinov2': (
        partial(transformers_vit, 'Dinov2', 1), 'dinov2', (DINOV2, BICUBIC)),
    'transformers.dinov2-gated-reg': (
        partial(transformers_vit, 'Dinov2WithRegisters', 5, use_swiglu_ffn=True),
        'dinov2', (DINOV2, REGISTERS, dict(ffn='swiglu', mlp_ratio=344 / 128))),
    'transformers.dinov3': (
        partial(transformers_vit, 'DINOv3ViT', 5, num_register_tokens=4, **MLP),
        'dinov3', (DINOV3,)),
    'transformers.dinov3-gated': (
        partial(transformers_vit, 'DINOv3ViT', 5, num_register_tokens=4, use_gated_mlp=True,
                hidden_act='silu', intermediate_size=320), 'dinov3', (DINOV3, GATED)),
    'transformers.clip': (
        partial(transformers_vit, 'CLIPVision', 1, **MLP), 'clip', (CLIP, BICUBIC)),
    'transformers.siglip': (
        partial(transformers_vit, 'SiglipVision', 0, **MLP), 'siglip', (SIGLIP, BICUBIC)),
}  # fmt: skip


def numbers(name, shape):
    """Return numbers of deviation 0.2, around 1 for weights of norms and scales, by a formula."""
    count = torch.Size(shape).numel()
    seed = zlib.crc32(name.encode()) % 10007
    waves = torch.sin(12.9898 * torch.arange(1, count + 1, dtype=torch.float64) + seed)
    noise = 2 * (43758.5453 * waves).frac().abs() - 1
    around = float(len(shape) == 1 and name.endswith(('weight', 'gamma', 'lambda1')))
    return (around + 0.35 * noise).reshape(shape).float()


def weights(shapes):
    return {name: numbers(name, shape) for name, shape in shapes.items()}


def shapes_of(module):
    return {name: tuple(value.shape) for name, value in module.state_dict().items()}


def library_model(case):
    """Return the model of a library with weights by the formula, and its features of patches."""
    model, features = CASES[case][0]()
    model.load_state_dict(weights(shapes_of(model)))
    return model.eval(), features


def our_model(case, state_dict, **changes):
    arch = dict(embed_dims=128, num_heads=2)
    for options in (*CASES[case][2], SMALL, changes):
        arch.update(options)
    model = ViT(arch).eval()
    start = 'backbone.'
    converted = convert(state_dict, CASES[case][1])
    model.load_state_dict({k[len(start) :]: v for k, v in converted.items() if k.startswith(start)})
    return model


def image(size):
    return numbers('image', (1, 3, *size))


def outputs(features, size):
    """Return the features (N, C) of an image, and the gradient of their mean square."""
    x = image(size).requires_grad_()
    out = features(x)
    (grad,) = torch.autograd.grad(out.square().mean(), x)
    return out.detach()[0], grad[0]


def record(path: Path) -> None:
    from safetensors.torch import save_file

    tensors, shapes = {}, {}
    for case in CASES:
        model, features = library_model(case)
        shapes[case] = shapes_of(model)
        for size in SIZES:
            key = f'{case}.{size[0]}x{size[1]}'
            tensors[f'{key}.out'], tensors[f'{key}.grad'] = outputs(features, size)
    tensors = {name: value.contiguous() for name, value in tensors.items()}
    save_file(tensors, path, dict(shapes=json.dumps(shapes)))


if __name__ == '__main__':
    record(Path(__file__).parent / 'golden' / 'foundation.safetensors')
