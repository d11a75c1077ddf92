"""ViT and DeiT compared with MMPretrain and timm; parameters, positions, outputs."""

import pytest
import torch
from mmengine.logging import MMLogger

from mmlinattn.checkpoints import CheckpointError, check_fits, save_checkpoint
from mmlinattn.checkpoints.converters import convert
from mmlinattn.engine.model import quiet
from mmlinattn.models.backbones import Swin, ViT
from mmlinattn.models.necks import SimpleFeaturePyramid
from tests.foundation_models import randomise
from tests.recordings import assert_near, below
from tests.sizes import LONG

TINY = dict(embed_dims=32, num_heads=2, depth=3, patch_size=8)


def build(arch=TINY, img_size=48, **kwargs) -> ViT:
    return ViT(arch, img_size=img_size, **kwargs)


def reference_model(**kwargs):
    pytest.importorskip('mmpretrain', reason='MMPretrain comes with the extra "cls"')
    from mmpretrain.models import VisionTransformer

    arch = dict(embed_dims=32, num_layers=3, num_heads=2, feedforward_channels=128)
    model = VisionTransformer(arch, img_size=48, patch_size=8, **kwargs)
    model.eval()
    return model


# 50 x 70 pixels: patches are padded and positions resized.
@pytest.mark.parametrize('size', [(48, 48), (50, 70)])
@pytest.mark.parametrize('out_type', ['cls_token', 'featmap'])
def test_equals_mmpretrain(size, out_type):
    released = randomise(reference_model(out_type=out_type))
    model = build(out_type=out_type).eval()
    weights = {f'backbone.{name}': value for name, value in released.state_dict().items()}
    model.load_state_dict(below(convert(weights, source='vit'), 'backbone.'))
    image = torch.randn(2, 3, *size)
    with torch.no_grad():
        assert_near(model(image), released(image))


def test_unsupported_weights_raise():
    with pytest.raises(CheckpointError, match='blocks.0.attn.rel_pos'):
        convert({'blocks.0.attn.rel_pos': torch.zeros(1)}, source='vit')
    with pytest.raises(
        CheckpointError, match='has a class or distillation token, but no pos_embed'
    ):
        convert({'backbone.dist_token': torch.zeros(1, 1, 32)}, source='deit')


def positions(model, count: int) -> dict:
    """Return weights with ``count`` positions and without ``pos_grid``."""
    state = dict(model.state_dict(), **{'embed.pos_embed': torch.randn(1, count, 32)})
    del state['embed.pos_grid']
    return state


def test_positions_of_another_size_are_resized(capsys, tmp_path):
    model = build()
    state = positions(model, 1 + 16)
    kept = state['embed.pos_embed'].clone()
    model.load_state_dict(dict(state))
    assert 'embed.pos_embed is resized from (4, 4) to (6, 6) patches' in capsys.readouterr().out
    assert torch.equal(model.embed.pos_embed[:, 0], kept[:, 0])  # of the class token
    grid = kept[0, 1:].T.unflatten(1, (4, 4))
    expected = torch.nn.functional.interpolate(grid[None], size=(6, 6), mode='bicubic')
    torch.testing.assert_close(model.embed.pos_embed[0, 1:].T, expected[0].flatten(1))
    # The check before a run resizes them, too.
    save_checkpoint(tmp_path / 'weights.pth', state, {})
    assert not check_fits(tmp_path / 'weights.pth', build()).mismatched


# The same number in another grid; more; between non-square grids; to one; no class token.
@pytest.mark.parametrize(
    'old, new, with_cls_token',
    [
        ((32, 128), (64, 64), True), ((32, 128), (96, 96), True), ((48, 80), (48, 96), True),
        ((48, 48), (32, 64), True), ((32, 128), (64, 64), False),
    ],
)  # fmt: skip
def test_positions_keep_their_rows_and_columns(old, new, with_cls_token):
    source, model = build(img_size=old), build(img_size=new, with_cls_token=with_cls_token)
    state = {name: value.clone() for name, value in source.state_dict().items()}
    if not with_cls_token:
        del state['embed.cls_token']
    model.load_state_dict(state)
    grid = source.embed.pos_embed[:, 1:].detach().mT.unflatten(2, [side // 8 for side in old])
    size = [side // 8 for side in new]
    expected = torch.nn.functional.interpolate(grid, size=size, mode='bicubic').flatten(2).mT
    torch.testing.assert_close(model.embed.pos_embed[:, int(with_cls_token) :], expected)
    assert model.state_dict()['embed.pos_grid'].tolist() == size


def test_positions_without_pos_grid():
    wide = build(img_size=(32, 128))
    state = positions(wide, 1 + 32 * 2)
    kept = state['embed.pos_embed'].clone()
    wide.load_state_dict(dict(state))  # the number of positions matches
    assert torch.equal(wide.embed.pos_embed, kept)
    with pytest.raises(
        ValueError, match=r'65 positions, but embed.pos_grid is missing.* \(6, 10\)'
    ):
        build(img_size=(48, 80)).load_state_dict(state)
    state['embed.pos_grid'] = torch.tensor((8, 9))
    with pytest.raises(ValueError, match=r'65 positions, which are not a grid of \(8, 9\)'):
        wide.load_state_dict(state)


@pytest.mark.parametrize(
    'shape, message',
    [
        ((1, 36, 32), '36 positions, .* not a square .* 1 extra tokens.* grid of \\(6, 6\\)'),
        ((1, 20, 32), '20 positions'),
        ((1, 17, 16), r'\(1, 17, 16\), the model needs \(1, 37, 32\)'),
        ((17, 32), r'\(17, 32\), the model needs'),
    ],
)
def test_positions_that_cannot_be_resized_raise(shape, message):
    model = build()
    state = dict(positions(model, 1), **{'embed.pos_embed': torch.zeros(shape)})
    with pytest.raises(ValueError, match=message):
        model.load_state_dict(state)


def test_other_image_sizes_are_logged_once(caplog, monkeypatch):
    logger = MMLogger.get_current_instance()
    monkeypatch.setattr(logger, 'handlers', [caplog.handler])
    model, other = build().eval(), build().eval()
    model(torch.randn(1, 3, 48, 48))
    with quiet():  # as in the checks before a training
        other(torch.randn(1, 3, 48, 64))
    assert 'resized' not in caplog.text
    for width in (64, 80):
        model(torch.randn(1, 3, 48, width))
    assert caplog.text.count('position embedding of (6, 6) patches is resized') == 1


def test_outputs():
    image = torch.randn(2, 3, 48, 48)
    model = build(out_indices=(0, 2)).eval()
    assert [tuple(out.shape) for out in model(image)] == [(2, 32, 6, 6)] * 2
    assert all(out.is_contiguous() for out in model(image))
    mean = build(out_type='avg_featmap').eval()
    mean.load_state_dict(model.state_dict())
    torch.testing.assert_close(mean(image)[0], model(image)[1].mean((2, 3)))
    short = build(out_indices=(1,))
    assert len(short.layers) == 2 and short.norm is None


def test_frozen_stages():
    model = build(frozen_stages=2).train()
    still = {name for name, value in model.named_parameters() if not value.requires_grad}
    parts = {'.'.join(name.split('.')[:2]) for name in still}
    assert parts == {'embed.proj', 'embed.cls_token', 'embed.pos_embed', 'layers.0', 'layers.1'}
    assert model.norm.weight.requires_grad
    assert not build(frozen_stages=3).norm.weight.requires_grad


@pytest.mark.parametrize('out_type', ['cls_token', 'avg_featmap'])
def test_class_token_from_a_later_layer(out_type):
    attns = ['GatedPositionalAttention', 'RALA', 'SoftmaxAttention']
    model = build(attn_cfg=attns, cls_token_from=2, out_type=out_type).eval()
    randomise(model)
    image = torch.randn(2, 3, 48, 48)
    tokens, weights = model.embed.proj(image).flatten(2).mT, dict(model.named_parameters())
    tokens = tokens + weights['embed.pos_embed']  # of 36 patches, the class token has none
    for i, layer in enumerate(model.layers):
        if i == 2:
            tokens = torch.cat([weights['cls_token'].repeat(2, 1, 1), tokens], 1)
        tokens = layer(tokens, (6, 6), int(i == 2))
    tokens = model.norm(tokens)
    assert tokens.shape == (2, 37, 32)
    expected = tokens[:, 0] if out_type == 'cls_token' else tokens[:, 1:].mean(1)
    torch.testing.assert_close(model(image)[0], expected)
    maps = build(attn_cfg=attns, cls_token_from=2, out_indices=(1, 2)).eval()
    assert [tuple(out.shape) for out in maps(image)] == [(2, 32, 6, 6)] * 2
    with pytest.raises(ValueError, match='GatedPositionalAttention does not support extra tokens'):
        build(attn_cfg=attns, cls_token_from=0)


def test_equals_convit(golden):
    """Compare with timm, where the class token joins before the first softmax attention."""
    recorded, _ = golden('convit_small')
    attns = [
        dict(type=f'{kind}Attention', qkv_bias=False) for kind in ('GatedPositional', 'Softmax')
    ]
    model = ViT(
        dict(embed_dims=16, num_heads=4, depth=3, mlp_ratio=2, patch_size=4),
        [attns[0], attns[0], attns[1]], 24, cls_token_from=2, out_type='cls_token',
    ).double().eval()  # fmt: skip
    converted = convert(below(recorded, 'weight.'), source='convit')
    model.load_state_dict(below(converted, 'backbone.'))
    image = recorded['image'].requires_grad_()
    tokens = []
    model.norm.register_forward_hook(lambda *args: tokens.append(args[-1]))
    (cls_token,) = model(image)
    torch.testing.assert_close(tokens[0], recorded['out'], rtol=1e-10, atol=1e-10)
    assert torch.equal(cls_token, tokens[0][:, 0])
    (grad,) = torch.autograd.grad(tokens[0], image, recorded['cotangent'])
    torch.testing.assert_close(grad, recorded['grad.image'], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    'kwargs, message',
    [
        (dict(arch='deit'), "arch must be one of .*deit-t.*got 'deit'"),
        (dict(arch=dict(embed_dims=32)), r"missing keys \['num_heads'\]"),
        (dict(attn_cfg=['RALA'] * 2), 'attn_cfg must be one attention, or 3: one per layer'),
        (dict(img_size=(48,)), r'img_size must be a positive integer, or two.* got \(48,\)'),
        (dict(img_size=50), 'img_size must be a multiple of patch_size=8, got 50'),
        (dict(with_cls_token=False, out_type='cls_token'), 'needs with_cls_token=True'),
        (dict(cls_token_from=3), 'cls_token_from must be a layer in 0..2.*got 3'),
        (dict(cls_token_from=True), 'cls_token_from .*got True'),
        (dict(cls_token_from=1, with_cls_token=False), 'or 0 without a class token, got 1'),
        (
            dict(cls_token_from=2, out_type='cls_token', out_indices=(1, 2)),
            r"out_type='cls_token' needs out_indices of at least cls_token_from=2, got \(1, 2\)",
        ),
        (dict(ffn='conv'), r"ffn must be one of .*'swiglu'\), got 'conv'"),
        (dict(out_type='raw'), "out_type must be one of .*got 'raw'"),
        (
            dict(out_indices=(3,)),
            r'out_indices must be a list of different layers in 0..2, got \(3,\)',
        ),
        (dict(out_indices=(1, 1)), r'list of different layers in 0..2, got \(1, 1\)'),
        (dict(init_cfg='x.pth'), "init_cfg must be a dict, .* got 'x.pth'"),
        (dict(frozen_stages='1'), "frozen_stages must be in -1..3, got '1'"),
        (dict(arch=dict(embed_dims=32, num_heads=2, depth='2')), r"arch\['depth'\] .* got '2'"),
        (dict(frozen_stages=4), 'frozen_stages must be in -1..3, got 4'),
        (dict(num_registers=-1), 'num_registers must be an integer of at least 0, got -1'),
        (dict(pos_resize='bilinear'), "pos_resize must be one of .*got 'bilinear'"),
        (dict(act='relu'), "act must be one of .*got 'relu'"),
        (dict(ffn='glu'), "ffn must be one of .*got 'glu'"),
        (dict(ffn='swiglu', act='gelu'), "act='gelu' has no effect with ffn='swiglu'"),
        (dict(ffn='mix', act='quick_gelu'), "act='quick_gelu' has no effect with ffn='mix'"),
        (dict(rotary=dict(rescale=0)), 'rotary.rescale must be a finite number of at least 1'),
        (dict(rotary='yes'), "rotary must be True, False or a dict .*got 'yes'"),
        (dict(rotary=3.5), 'rotary must be True, False or a dict .*got 3.5'),
    ],
)
def test_bad_options(kwargs, message):
    with pytest.raises(ValueError, match=message) as error:
        build(**kwargs)
    assert '\n' not in str(error.value)


def test_pyramid_equals_the_formula():
    neck = randomise(SimpleFeaturePyramid(8, 4, num_outs=5)).double()
    x = torch.randn(1, 8, 4, 6, dtype=torch.float64)

    def norm(layer, y):
        mean, var = y.mean(1, keepdim=True), y.var(1, unbiased=False, keepdim=True)
        y = (y - mean) / (var + 1e-6).sqrt()
        return y * layer.weight[:, None, None] + layer.bias[:, None, None]

    def twice(layer, y):  # each pixel becomes 2 x 2
        blocks = torch.einsum('bchw,cdij->bdhiwj', y, layer.weight)
        return blocks.flatten(2, 3).flatten(3) + layer.bias[:, None, None]

    first, between, _, second = neck.scales[0]
    up = twice(second, torch.nn.functional.gelu(norm(between, twice(first, x))))
    halved = x.unflatten(2, (2, 2)).unflatten(4, (3, 2)).amax((3, 5))
    outs = neck((torch.randn(1), x))
    for out, scaled, layers in zip(outs, (up, twice(neck.scales[1], x), x, halved), neck.outs):
        y = norm(layers[1], torch.einsum('bchw,dc->bdhw', scaled, layers[0].weight[..., 0, 0]))
        y = norm(layers[3], torch.nn.functional.conv2d(y, layers[2].weight, padding=1))
        torch.testing.assert_close(out, y)
    assert torch.equal(outs[4], outs[3][..., ::2, ::2])
    with pytest.raises(ValueError, match='num_outs must be at least 4, got 3'):
        SimpleFeaturePyramid(8, 4, num_outs=3)
    with pytest.raises(ValueError, match='in_channels must be a multiple of 4, got 6'):
        SimpleFeaturePyramid(6, 4)


@pytest.mark.parametrize('cls_token_from', [0, 1])
def test_initial_values_of_deit(cls_token_from):
    """DeiT's are timm's: torch's default for the patch embedding, 0.02 for all else."""
    arch = dict(embed_dims=192, num_heads=3, depth=2)
    model = ViT(arch, cls_token_from=cls_token_from, img_size=64)
    model.init_weights()
    proj, bound = model.embed.proj, (3 * 16 * 16) ** -0.5
    for parameter in (proj.weight, proj.bias):
        assert 0.9 * bound < parameter.abs().max() <= bound
        assert abs(parameter.std() * 3**0.5 / bound - 1) < 0.15
    token = model.cls_token if cls_token_from else model.embed.cls_token
    linear = model.layers[0].attn.in_proj
    for parameter in (token, model.embed.pos_embed, linear.weight, model.layers[1].ffn.fc1.weight):
        assert abs(parameter.std() / 0.02 - 1) < 0.15 and abs(parameter.mean()) < 5e-3
    assert not linear.bias.any()


SIZES = ((48, 48), (50, 70), (9, 120), (33, 16))
FOUNDATION = dict(num_registers=2, rotary=dict(), layer_scale_init=0.1, ffn='swiglu')


@pytest.mark.parametrize(
    'attn_cfg, options',
    [
        ('RALA', dict(out_type='cls_token', with_cp=True)),
        (['MALA', 'SoftmaxAttention', 'RWGKA'], dict(out_indices=(0, 2), ffn='mix')),
        (['GatedPositionalAttention'] * 2 + ['RALA'], dict(cls_token_from=2, out_type='cls_token')),
        ('LinearAttention', dict(with_cls_token=False, out_type='avg_featmap', pos_embed=False)),
        ('MALA', FOUNDATION),
        ('MALA', dict(FOUNDATION, cls_token_from=1)),
        ('CoreAttention', dict(num_registers=1)),
        ('TTTAttention', dict(arch=dict(TINY, cpe=True), num_registers=2, pos_embed=False)),
    ],
)
def test_images_of_different_sizes_as_each_alone(attn_cfg, options):
    model = randomise(build(attn_cfg=attn_cfg, **options)).double().eval()
    images = [torch.randn(3, *size, dtype=torch.float64) for size in SIZES]
    packed, alone = model(images), [model(image[None]) for image in images]
    parameters = [*model.parameters()]
    grads = []
    for i, out in enumerate(packed):
        assert isinstance(out, list) == (model.out_type == 'featmap') and len(out) == len(images)
        for j, single in enumerate(alone):
            found = out[j] if isinstance(out, list) else out[j : j + 1]
            torch.testing.assert_close(found, single[i], rtol=1e-10, atol=1e-11)
    for outs in (packed[-1], [out[-1] for out in alone]):
        total = sum(out.square().mean() for out in outs)
        grads.append(torch.autograd.grad(total, parameters, allow_unused=True))
    for a, b in zip(*grads):
        assert (a is None) == (b is None)
        if a is not None:
            assert (a - b).norm() <= 1e-9 * b.norm() + 1e-11


@pytest.mark.long
@pytest.mark.skipif(not LONG, reason='it compiles for 15 s; test_packed.py compiles an operator')
def test_compiles_for_images_of_different_sizes():
    torch.compiler.reset()
    model = build(dict(TINY, depth=1), attn_cfg='RALA', out_type='cls_token').eval()
    images = [torch.randn(3, *size) for size in SIZES[:2]]
    compiled = torch.compile(model, fullgraph=True, backend='eager', dynamic=False)
    with torch.no_grad():
        torch.testing.assert_close(compiled(images), model(images))


@pytest.mark.parametrize(
    'image, message',
    [
        (torch.randn(3, 0, 8), r'image 1 must have shape \(3, H, W\) and pixels, got \(3, 0, 8\)'),
        (torch.randn(1, 8, 8), r'got \(1, 8, 8\)'),
        (torch.randn(1, 3, 8, 8), r'got \(1, 3, 8, 8\)'),
    ],
)
def test_listed_images_that_do_not_fit(image, message):
    with pytest.raises(ValueError, match=message):
        build()([torch.randn(3, 16, 16), image])
    with pytest.raises(ValueError, match='got an empty list'):
        build()([])


def test_what_takes_no_list_says_why():
    with pytest.raises(TypeError, match='Swin takes one tensor .* got a list of 2 images'):
        Swin('tiny')([torch.randn(3, 16, 16), torch.randn(3, 16, 24)])
    model = build(attn_cfg='ConvProjectionAttention', with_cls_token=False)
    message = 'ConvProjectionAttention does not support packed images: in training its batch norms'
    with pytest.raises(ValueError, match=message):
        model.train()([torch.randn(3, 16, 16)])
