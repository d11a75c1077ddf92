"""The model: its encoder, its losses and its training step."""

import copy

import pytest
import torch
import torch.nn.functional as F
from mmengine.config import ConfigDict
from mmengine.optim import OptimWrapper, OptimWrapperDict, build_optim_wrapper
from mmengine.registry import MODELS
from torch import nn

from mmlinattn.projects.vqgan import ViTVQGAN, logit_laplace_loss
from mmlinattn.utils.errors import InputError

SIDE, PATCH = 32, 8
ATTENTIONS = [
    'SoftmaxAttention', 'SlinearAttention', dict(type='NystromAttention', num_landmarks=4),
    dict(type='RWGKA', num_anchors=4), 'RALA',
]  # fmt: skip


def config(attn_cfg='SoftmaxAttention', **options) -> dict:
    vit = dict(
        type='ViT', arch=dict(embed_dims=32, num_heads=2, depth=2, patch_size=PATCH),
        img_size=SIDE, attn_cfg=attn_cfg, with_cls_token=False,
    )  # fmt: skip
    cfg = dict(
        type='ViTVQGAN', backbone=vit, quantizer=dict(num_codes=32, code_dims=8),
        discriminator=dict(img_size=SIDE, base_channels=8, max_channels=16),
        data_preprocessor=dict(type='ImgDataPreprocessor', mean=[0], std=[255], bgr_to_rgb=True),
    )  # fmt: skip
    return dict(cfg, **options)


def build(*args, **options) -> ViTVQGAN:
    model = MODELS.build(config(*args, **options))
    for name, parameter in model.named_parameters():
        if name.endswith('weight') and parameter.dim() > 1:
            nn.init.xavier_normal_(parameter)
    return model.eval()


def optimizers(model, kind='OptimWrapper'):
    cfg = ConfigDict(
        type=kind, constructor='GeneratorDiscriminatorConstructor',
        optimizer=dict(type='Adam', lr=1e-3),
    )  # fmt: skip
    return build_optim_wrapper(model, cfg)


def batch(count: int = 4) -> dict:
    return dict(inputs=[torch.randint(0, 256, (3, SIDE, SIDE)).byte() for _ in range(count)])


def test_the_decoder_has_the_size_of_the_encoder():
    cfg = config()
    cfg['backbone']['arch']['img_size'] = cfg['backbone'].pop('img_size')
    model = MODELS.build(cfg)
    sizes, expected = ([p.shape for p in m.decoder.parameters()] for m in (model, build()))
    assert sizes == expected
    inputs = torch.rand(1, 3, SIDE, SIDE)
    assert model(inputs).shape == inputs.shape


def test_reconstruction_is_decoded_from_codes_alone():
    model, image = build(), torch.rand(2, 3, SIDE, SIDE)
    (first, second) = model(image, mode='predict')
    assert first.codes.shape == (16,) and first.num_codes == 32
    codes = torch.stack([first.codes, second.codes]).view(2, 4, 4)
    decoded = model.decode_codes(codes)
    torch.testing.assert_close(decoded, model(image), rtol=1e-4, atol=1e-5)
    assert first.pred_img.equal((decoded[0].clamp(0, 1) * 255).round().byte())
    assert first.gt_img.equal((image[0] * 255).round().byte())


def test_losses_and_their_weights():
    model = build(loss_weights=dict(l2=2.0, adversarial=0.3))
    image = torch.rand(2, 3, SIDE, SIDE)
    losses, made = model(image, mode='loss'), model(image)
    expected = dict(
        loss_l2=2 * (made - image).square().mean(),
        loss_logit_laplace=0.1 * logit_laplace_loss(made, image),
        loss_adversarial=0.3 * F.softplus(-model.discriminator(made)).mean(),
        loss_vq=model.encode(image).loss,
    )
    assert set(losses) == {*expected, 'perplexity'}
    for name, value in expected.items():
        torch.testing.assert_close(losses[name], value)


@pytest.mark.parametrize('attn_cfg', ATTENTIONS)
def test_any_attention_trains_all_parameters(attn_cfg):
    model = build(attn_cfg).train()
    before = copy.deepcopy(model.state_dict())
    logged = model.train_step(batch(), optimizers(model))
    assert {'loss', 'loss_discriminator', 'perplexity'} < set(logged)
    same = [name for name, p in model.named_parameters() if p.equal(before[name])]
    assert not same
    kinds = {type(m).__name__ for m in model.modules() if hasattr(m, 'in_proj')}
    assert len(kinds) == 1


def test_each_optimiser_moves_its_part():
    data = batch()
    for name, still in (('generator', 'discriminator'), ('discriminator', 'generator')):
        model = build().train()
        wrappers = optimizers(model)
        for group in wrappers[still].param_groups:
            group['lr'] = 0.0
        own = {id(p) for group in wrappers[name].param_groups for p in group['params']}
        before = {n: p.clone() for n, p in model.named_parameters()}
        model.train_step(data, wrappers)
        moved = {n for n, p in model.named_parameters() if not p.equal(before[n])}
        assert moved == {n for n, p in model.named_parameters() if id(p) in own}
        assert all(n.startswith('discriminator.') == (name == 'discriminator') for n in moved)


def test_adversarial_gradient_is_that_of_the_fixed_discriminator():
    model = build(loss_weights=dict(l2=0.0, logit_laplace=0.0, adversarial=1.0))
    image = torch.rand(2, 3, SIDE, SIDE)
    model(image, mode='loss')['loss_adversarial'].backward()
    assert all(p.grad is None and p.requires_grad for p in model.discriminator.parameters())
    weight = model.decoder.head.fc2.weight
    (wanted,) = torch.autograd.grad(F.softplus(-model.discriminator(model(image))).mean(), weight)
    torch.testing.assert_close(weight.grad, wanted)


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_autocast_trains_and_is_near_float32(dtype):
    model, image = build(), torch.rand(2, 3, SIDE, SIDE)
    codes = model.encode(image).codes
    reference = model(image, mode='loss')
    with torch.autocast('cpu', dtype=dtype):
        losses = model(image, mode='loss')
        shared = (model.encode(image).codes == codes).float().mean()
    assert shared > 0.8
    for name, value in losses.items():
        assert value.dtype == torch.float32
        if name != 'perplexity':
            assert float(value) == pytest.approx(float(reference[name]), rel=0.1, abs=0.02)
    sum(losses.values()).backward()
    grads = [p.grad for n, p in model.named_parameters() if 'discriminator' not in n]
    assert all(g is not None and torch.isfinite(g).all() for g in grads)


def test_cpu_amp_wrapper_runs_encoder_decoder_and_discriminator_in_bfloat16():
    model, seen = build().train(), []
    for part in (
        model.backbone.layers[0].ffn,
        model.decoder.vit.layers[0].ffn,
        model.discriminator,
    ):
        linear = next(m for m in part.modules() if isinstance(m, (nn.Linear, nn.Conv2d)))
        linear.register_forward_hook(lambda m, x, out: seen.append(out.dtype))
    logged = model.train_step(batch(), optimizers(model, 'CPUAmpOptimWrapper'))
    assert seen and torch.isfinite(logged['loss'])
    assert torch.bfloat16 in seen


def test_frozen_parts_stay_frozen_and_others_trainable():
    backbone = dict(config()['backbone'], frozen_stages=2)
    model = build(backbone=backbone).train()
    assert all(parameter.requires_grad for parameter in model.decoder.parameters())
    frozen = next(model.discriminator.parameters()).requires_grad_(False)
    model.generator_step(torch.rand(2, 3, SIDE, SIDE))
    assert not frozen.requires_grad
    assert sum(not parameter.requires_grad for parameter in model.discriminator.parameters()) == 1


def test_without_discriminator_there_is_one_optimiser():
    model = build(discriminator=None).train()
    wrappers = optimizers(model)
    assert [*wrappers.keys()] == ['generator']
    assert 'loss_discriminator' not in model.train_step(batch(), wrappers)


def test_bad_options_images_and_backbones():
    with pytest.raises(ValueError, match=r"loss_weights has \['l1'\]; it takes \['l2'"):
        build(loss_weights=dict(l1=1))
    late = dict(with_cls_token=True, cls_token_from=1)
    for wrong in (dict(with_cls_token=True), late, dict(out_type='avg_featmap')):
        cfg = config()
        cfg['backbone'].update(wrong)
        with pytest.raises(ValueError, match='must be a ViT with with_cls_token=False'):
            MODELS.build(cfg)
    for wrong, error in (
        (dict(decoder=dict(patch_size=16)), "decoder.patch_size must be the encoder's, 8, got 16"),
        (dict(loss_weights=dict(l2=-1)), 'loss_weights.l2 must be a finite number of at least 0'),
        (dict(quantizer=dict(commitment='a')), "commitment must be a finite number .* got 'a'"),
        (dict(discriminator=dict(img_size=32, base_channels=0)), 'base_channels must be'),
        (dict(discriminator=dict(img_size=32, max_channels=4.5)), 'max_channels must be'),
        (dict(backbone=dict(config()['backbone'], in_channels=1)), 'in_channels=3'),
    ):
        with pytest.raises(ValueError, match=error):
            build(**wrong)
    model = build()
    with pytest.raises(ValueError, match=r'images of 30x32 are no whole number of patches of 8x8'):
        model(torch.rand(1, 3, 30, 32))
    one = OptimWrapper(torch.optim.SGD(model.parameters(), 0.1))
    for wrapper in (one, OptimWrapperDict(other=one)):
        with pytest.raises(InputError, match="constructor='GeneratorDiscriminatorConstructor'"):
            model.train_step(batch(), wrapper)
    image = torch.rand(1, 3, 32, 32)
    for other, fake in ((build(discriminator=None), image), (model, None)):
        with pytest.raises(ValueError, match="mode='discriminator' needs model.discriminator and"):
            other(image, mode='discriminator', reconstruction=fake)


@pytest.mark.parametrize(
    'inputs, found',
    [
        (torch.rand(2, 3, SIDE, SIDE) * 255, r'got [\d.]+ to 25\d.*set mean=\[0, 0, 0\]'),
        (torch.rand(2, 3, SIDE, SIDE) * 4 - 2, r'in \[0, 1\], got -'),
        ([torch.rand(3, SIDE, SIDE)], 'one tensor, got list'),
    ],
)
def test_images_that_are_not_from_0_to_1_end_a_training(inputs, found):
    """The Laplace loss of others is NaN, which trained on."""
    model = build(data_preprocessor=dict(type='BaseDataPreprocessor')).train()
    with pytest.raises(InputError, match=found):
        model.train_step(dict(inputs=inputs), optimizers(model))


def test_the_range_of_images_is_asked_once(monkeypatch):
    model, asked = build().train(), []
    monkeypatch.setattr(model, '_check_range', asked.append)
    for _ in range(2):
        model.train_step(batch(), optimizers(model))
    assert len(asked) == 1


def test_a_model_in_bfloat16():
    torch.manual_seed(0)
    model, image = build(discriminator=None).eval(), torch.rand(1, 3, SIDE, SIDE)
    codes = model.encode(image).codes.view(1, *model.code_shape(image))
    expected = model.decode_codes(codes)
    out = model.bfloat16().decode_codes(codes)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), expected, rtol=0, atol=0.05)
    assert model(image.bfloat16()).dtype == torch.bfloat16


def test_other_sizes_resize_positions_of_encoder_and_decoder():
    out = build(discriminator=None)(torch.rand(1, 3, 48, 64))
    assert out.shape == (1, 3, 48, 64)
