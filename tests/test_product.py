"""Every registered attention in every backbone; new ones are tested without a new test."""

from functools import partial
from typing import Callable, Dict, List

import pytest
import torch
from torch import Tensor, nn

from mmlinattn.checkpoints import load_state_dict, save_checkpoint
from mmlinattn.models.backbones import Backbone
from mmlinattn.models.layers import BaseAttention, registered_subclasses

ARCH = dict(embed_dims=(16, 16, 32, 32), depths=1, num_heads=(1, 2, 2, 4))
# Backbones that need other sizes or options.
OPTIONS: Dict[str, dict] = dict(
    ViL=dict(arch=dict(ARCH, global_tokens=0), img_size=(64, 80)),
    CvT=dict(
        arch=dict(embed_dims=(16, 16, 32), depths=1, num_heads=(1, 2, 4)), with_cls_token=False
    ),
    ViT=dict(
        arch=dict(embed_dims=16, num_heads=2, depth=4, patch_size=8),
        out_indices=(0, 3),
        img_size=(64, 80),
        with_cls_token=False,
    ),
)


def ours(base: type) -> Dict[str, type]:
    found = registered_subclasses(base)
    return {name: cls for name, cls in found.items() if cls.__module__.startswith('mmlinattn.')}


class Encoder(nn.Module):
    """Encoder of SMCA with the interface of a backbone."""

    def __init__(self, attn_cfg: str) -> None:
        super().__init__()
        from mmlinattn.models.detectors.smca_encoder import SMCAEncoder

        layer_cfg = dict(attn_cfg=attn_cfg, embed_dims=16, num_heads=2, feedforward_channels=32)
        self.encoder = SMCAEncoder(2, dict(layer_cfg, dropout=0.0))

    def forward(self, image: Tensor) -> List[Tensor]:
        x = image.repeat(1, 6, 1, 1)[:, :16, ::8, ::8]  # [B, 16, 8, 10]
        tokens, pos = x.flatten(2).mT, x.flatten(2).mT.roll(1, -1)
        mask = torch.zeros(tokens.shape[:2], dtype=torch.bool)
        mask[0, -10:] = True  # below row 56 of the first image
        return [self.encoder(tokens, x.shape[-2:], pos, mask)]


BACKBONES = ours(Backbone)
MODEL_FACTORIES: Dict[str, Callable[..., nn.Module]] = {
    **{
        name: partial(cls, **{'arch': ARCH, **OPTIONS.get(name, {})})
        for name, cls in BACKBONES.items()
    },
    'SMCAEncoder': Encoder,
}


@pytest.fixture(params=ours(BaseAttention))
def attention(request) -> str:
    return request.param


@pytest.fixture(params=MODEL_FACTORIES)
def model_factory(request) -> Callable[..., nn.Module]:
    if request.param == 'SMCAEncoder':
        pytest.importorskip('mmdet', reason='SMCA needs MMDetection, the extra "det"')
    return MODEL_FACTORIES[request.param]


@pytest.fixture(params=BACKBONES)
def backbone(request) -> Callable[..., nn.Module]:
    return MODEL_FACTORIES[request.param]


@pytest.fixture
def image() -> Tensor:
    return torch.randn(2, 3, 64, 80)


def gradients(model: nn.Module, image: Tensor) -> Dict[str, Tensor]:
    torch.manual_seed(2)
    sum((out.float() ** 2).mean() for out in model(image)).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def test_every_parameter_learns(model_factory, attention, image):
    found = gradients(model_factory(attn_cfg=attention), image)
    assert found
    for name, gradient in found.items():
        assert gradient is not None, f'{name} is not used'
        assert torch.isfinite(gradient).all() and gradient.any(), name


def test_half_precision_is_close(model_factory, attention, image):
    model = model_factory(attn_cfg=attention).eval()
    with torch.no_grad():
        exact = model(image)
        with torch.autocast('cpu', dtype=torch.bfloat16):
            half = model(image)
    for a, b in zip(half, exact):
        assert torch.isfinite(a).all()
        assert (a.float() - b).norm() < 0.04 * b.norm()


def test_weights_survive_saving_and_loading(model_factory, attention, image, tmp_path):
    source, target = (
        model_factory(attn_cfg=attention).eval(),
        model_factory(attn_cfg=attention).eval(),
    )
    path = tmp_path / 'weights.pth'
    save_checkpoint(path, source.state_dict(), {})
    target.load_state_dict(load_state_dict(path)[0])
    with torch.no_grad():
        for a, b in zip(target(image), source(image)):
            assert torch.equal(a, b)


def test_checkpointing_gives_the_same_gradients_and_statistics(backbone, attention, image):
    models = [backbone(attn_cfg=attention, with_cp=on, drop_path_rate=0.3) for on in (False, True)]
    models[1].load_state_dict(models[0].state_dict())
    plain, recomputed = (gradients(model, image) for model in models)
    for name, gradient in plain.items():
        assert torch.equal(gradient, recomputed[name]), name
    statistics = [dict(model.named_buffers()) for model in models]
    for name, value in statistics[0].items():
        assert torch.equal(value, statistics[1][name]), name


def test_backbones_initialise_projections_only(backbone, attention):
    model = backbone(attn_cfg=attention)
    before = {name: value.clone() for name, value in model.named_parameters()}
    model.init_weights()
    for prefix, module in model.named_modules():
        if isinstance(module, BaseAttention):
            for name, value in module.named_parameters():
                changed = not torch.equal(value, before[f'{prefix}.{name}'])
                assert changed == (name.split('.')[0] in module.projections), name


def test_init_cfg_of_an_attention_is_applied_last(model_factory, attention):
    starting = dict(type='Constant', val=0.5, layer='Linear')
    model = model_factory(attn_cfg=dict(type=attention, init_cfg=starting))
    (getattr(model, 'encoder', model)).init_weights()
    projections = [m.proj.weight for m in model.modules() if isinstance(m, BaseAttention)]
    assert projections and all((weight == 0.5).all() for weight in projections)


def test_one_attention_per_stage(backbone, image):
    names = ['RALA', dict(type='RWGKA', num_anchors=3), 'LinearAttention', 'RippleAttention']
    count = backbone(attn_cfg='RALA').count_stages()
    model = backbone(attn_cfg=names[:count])
    kinds = [type(m).__name__ for m in model.modules() if isinstance(m, BaseAttention)]
    assert kinds == ['RALA', 'RWGKA', 'LinearAttention', 'RippleAttention'][:count]
    assert len(model(image)) == len(model.out_indices)
    with pytest.raises(ValueError, match=f'attn_cfg must be one attention, or {count}: one per '):
        backbone(attn_cfg=names[: count - 1])


def test_content_of_padding_does_not_change_real_tokens(attention, image):
    pytest.importorskip('mmdet', reason='SMCA needs MMDetection, the extra "det"')
    model, other = Encoder(attn_cfg=attention).eval(), image.clone()
    other[0, :, 56:] = 100 * torch.randn_like(other[0, :, 56:])
    with torch.no_grad():
        (out,), (expected,) = model(other), model(image)
    assert not torch.equal(out[0, -10:], expected[0, -10:])
    torch.testing.assert_close(out[0, :-10], expected[0, :-10])
    torch.testing.assert_close(out[1], expected[1])


# Backbones with extra tokens, and the prefix of parameters that can have zero gradients. If only
# the class token is returned, local position and rings of the last layer have no effect.
EXTRA_TOKENS = dict(
    ViT=(
        dict(OPTIONS['ViT'], with_cls_token=True, out_indices=(3,), out_type='cls_token'),
        'layers.3.attn.',
    ),
    CvT=(
        dict(OPTIONS['CvT'], with_cls_token=True, out_indices=(2,), out_type='cls_token'),
        'stages.2.0.attn.',
    ),
    ViL=(dict(OPTIONS['ViL'], arch=dict(ARCH, depths=2, global_tokens=(1, 2, 1, 0))), None),
)


@pytest.mark.parametrize('name', EXTRA_TOKENS)
def test_extra_tokens_with_every_attention(name, attention, image):
    options, last = EXTRA_TOKENS[name]
    if not ours(BaseAttention)[attention].supports_extra_tokens:
        with pytest.raises(ValueError, match=f'{attention} does not support extra tokens'):
            BACKBONES[name](attn_cfg=attention, **options)
        return
    model = BACKBONES[name](attn_cfg=attention, **options)
    for parameter, gradient in gradients(model, image).items():
        assert gradient is not None and torch.isfinite(gradient).all(), parameter
        assert gradient.any() or (last and parameter.startswith(last)), parameter
