"""DINOv2, DINOv3, DeiT III, CLIP and SigLIP compared with timm and transformers."""

import json
import math

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from mmlinattn.checkpoints import CheckpointError
from mmlinattn.checkpoints.converters import convert
from mmlinattn.models.backbones import ViT
from mmlinattn.models.backbones.patch_embed import resize_embedding
from mmlinattn.models.backbones.vit_patch_embed import resize_positions
from mmlinattn.models.layers import SwiGLU, build_attention, registered_subclasses
from mmlinattn.models.layers.base import BaseAttention
from mmlinattn.models.layers.rotary import RotaryCoordinates
from mmlinattn.ops import PackedShapes, Rotary, apply_rotary
from tests.foundation_models import CASES, SIZES, our_model, outputs, randomise, renamed, weights
from tests.recordings import assert_near

TINY = dict(embed_dims=32, num_heads=2, depth=3, patch_size=8, img_size=48)


def shapes(golden, case):
    tensors, metadata = golden('foundation')
    return tensors, json.loads(metadata['shapes'])[case]


def patches(model):
    return lambda x: model(x)[0].flatten(2).mT


@pytest.mark.parametrize('case', CASES)
def test_equals_recorded_outputs_and_gradients(golden, case):
    recorded, names = shapes(golden, case)
    model = our_model(case, weights(names))
    for height, width in SIZES:
        out, grad = outputs(patches(model), (height, width))
        names = [f'{case}.{height}x{width}.{name}' for name in ('out', 'grad')]
        assert_near([out, grad], [recorded[name] for name in names])


def test_class_token_is_that_of_the_library(golden):
    """The first token; the recorded outputs are of patches."""
    _, names = shapes(golden, 'timm.dinov3')
    model = our_model('timm.dinov3', weights(names))
    norm = []
    model.norm.register_forward_hook(lambda *args: norm.append(args[-1]))
    model.out_type = 'cls_token'
    (out,) = model(torch.randn(1, 3, 8, 12))
    assert torch.equal(out, norm[0][:, 0]) and norm[0].shape == (1, 1 + 4 + 6, 128)


# Names of the releases, which no package installs


def test_names_of_the_release_of_dinov2(golden):
    _, names = shapes(golden, 'timm.dinov2-gated-reg')
    expected = convert(weights(names), 'dinov2')
    theirs = renamed(
        weights(names), ('reg_token', 'register_tokens'), ('fc1', 'w12'), ('fc2', 'w3')
    )
    position = torch.randn(1, 1, 128)  # timm adds it to the class token
    theirs['pos_embed'] = torch.cat([position, theirs['pos_embed']], 1)
    theirs['mask_token'] = torch.zeros(1, 128)
    assert not expected['backbone.embed.pos_embed'][:, 0].any()
    expected['backbone.embed.pos_embed'][:, :1] = position
    torch.testing.assert_close(convert(theirs, 'dinov2'), expected, rtol=0, atol=0)


@pytest.mark.parametrize('case', ['timm.dinov3', 'timm.dinov3-gated'])
def test_names_of_the_release_of_dinov3(golden, case):
    _, names = shapes(golden, case)
    expected = convert(weights(names), 'dinov3')
    theirs = renamed(
        weights(names), ('reg_token', 'storage_tokens'), (r'gamma_(\d)', r'ls\1.gamma'),
        ('fc1_g', 'w1'), ('fc1_x', 'w2'), (r'mlp\.fc2', 'mlp.w3' if 'gated' in case else 'mlp.fc2'),
    )  # fmt: skip
    for name in [name for name in theirs if name.endswith('q_bias')]:
        parts = theirs.pop(name), torch.randn(128), theirs.pop(name.replace('q_bias', 'v_bias'))
        name = name.replace('q_bias', 'qkv.bias')
        theirs[name] = torch.cat(parts)
        theirs[f'{name}_mask'] = torch.ones(3, 128).index_fill(0, torch.tensor(1), 0).flatten()
    theirs.update({'rope_embed.periods': torch.ones(16), 'mask_token': torch.zeros(1, 128)})
    torch.testing.assert_close(convert(theirs, 'dinov3'), expected, rtol=0, atol=0)


@pytest.mark.parametrize('trunk', [True, False])
def test_names_of_the_release_of_clip(golden, trunk):
    _, names = shapes(golden, 'timm.clip')
    state_dict = {k: v for k, v in weights(names).items() if not k.startswith('head.')}
    expected = convert(state_dict, 'clip')
    pairs = [(r'^', 'visual.trunk.')]  # timm's model in OpenCLIP
    if not trunk:
        pairs = [
            (r'attn\.qkv\.', 'attn.in_proj_'), (r'attn\.proj\.', 'attn.out_proj.'),
            (r'(?<=\.)norm([12])', r'ln_\1'), (r'^norm_pre', 'ln_pre'), (r'^norm\.', 'ln_post.'),
            (r'mlp\.fc1', 'mlp.c_fc'), (r'mlp\.fc2', 'mlp.c_proj'),
            (r'^blocks', 'transformer.resblocks'), (r'patch_embed\.proj', 'conv1'),
            ('cls_token', 'class_embedding'), ('pos_embed', 'positional_embedding'),
            (r'^', 'visual.'),
        ]  # fmt: skip
    theirs = renamed(state_dict, *pairs)
    if not trunk:
        for name, shape in (('class_embedding', (128,)), ('positional_embedding', (10, 128))):
            theirs[f'visual.{name}'] = theirs[f'visual.{name}'].reshape(shape)
    theirs.update({'visual.proj': torch.zeros(128, 9), 'logit_scale': torch.zeros(())})
    theirs['transformer.resblocks.0.ln_1.weight'] = torch.zeros(8)  # of the text
    torch.testing.assert_close(convert(theirs, 'clip'), expected, rtol=0, atol=0)


@pytest.mark.parametrize('case, left_out, source, message', [
    ('dinov3-no-bias', '', 'dinov2', 'no pos_embed: DINOv3 needs source dinov3'),
    ('dinov2-gated-reg', '', 'dinov3', 'but of --source dinov2'),
    ('dinov2', '', 'dinov3',  # all that fit are named
     '--source dinov3, but of --source deit, vit, .*, dinov2, clip or siglip$'),
    ('dinov3', '', 'vit', 'but of --source dinov3$'),
    ('dinov3', '', 'dinov2', 'but of --source dinov3$'),
    ('dinov3', 'reg_token', 'vit', r'it has blocks\.0\.attn\.q_bias: BEiT or EVA'),
    ('dinov3', 'reg_token', 'dinov2', r'it has blocks\.0\.attn\.q_bias: BEiT or EVA'),
])  # fmt: skip
def test_the_wrong_source(golden, case, left_out, source, message):
    state = weights(shapes(golden, f'timm.{case}')[1])
    state.pop(left_out, None)
    with pytest.raises(CheckpointError, match=message):
        convert(state, source)


@pytest.mark.parametrize('names', [('', 'visual.trunk.'), ('visual.trunk.', '')])
def test_clip_with_a_name_twice(names):
    twice = {f'{start}norm.weight': torch.zeros(8) for start in names}
    with pytest.raises(CheckpointError, match=r'has norm\.weight twice, again as .*norm\.weight'):
        convert(twice, 'clip')


@pytest.mark.parametrize('periods', [{}, {'rope_embed.periods': torch.ones(16)}])
def test_dinov3_with_unknown_heads(periods):
    theirs = {
        'blocks.0.attn.qkv.weight': torch.zeros(288, 96),
        'storage_tokens': torch.zeros(1, 4, 96),
    }
    theirs.update(periods)
    with pytest.raises(CheckpointError, match='has 96 channels, which are no multiple of the 64'):
        convert(theirs, 'dinov3')


# Parts against their definitions


def cubic(x, a):
    """Keys' cubic convolution kernel."""
    x = abs(x)
    if x < 1:
        return (a + 2) * x**3 - (a + 3) * x**2 + 1
    return a * (x**3 - 5 * x**2 + 8 * x - 4) if x < 2 else 0.0


def resizing_matrix(old, new, method):
    """Return the (new, old) weights of one axis."""
    matrix = torch.zeros(new, old, dtype=torch.float64)
    ratio = old / (new + 0.1) if method == 'offset' else old / new
    for i in range(new):
        centre = (i + 0.5) * ratio - 0.5
        if method == 'antialias':  # a wider kernel where the side shrinks, cut at the border
            width = max(ratio, 1.0)
            for j in range(old):
                matrix[i, j] = cubic((j - centre) / width, -0.5)
            matrix[i] /= matrix[i].sum()
        else:  # the border is repeated
            for j in range(math.floor(centre) - 1, math.floor(centre) + 3):
                matrix[i, min(max(j, 0), old - 1)] += cubic(j - centre, -0.75)
    return matrix


@pytest.mark.parametrize('method', ['bicubic', 'antialias', 'offset'])
@pytest.mark.parametrize('new', [(4, 11), (3, 2)])
def test_resized_positions(method, new):
    positions = torch.randn(1, 1 + 7 * 6, 5)
    rows, columns = (resizing_matrix(o, n, method) for o, n in zip((7, 6), new))
    grid = positions[0, 1:].double().unflatten(0, (7, 6))
    expected = torch.einsum('ab,bcd,ec->aed', rows, grid, columns).flatten(0, 1).float()
    out = resize_positions(positions, (7, 6), new, 1, method)
    assert torch.equal(out[:, 0], positions[:, 0])
    torch.testing.assert_close(out[0, 1:], expected, rtol=1e-4, atol=1e-5)
    exact = torch.einsum('ab,bcd,ec->aed', rows, grid, columns).flatten(0, 1)
    out = resize_positions(positions.double(), (7, 6), new, 1, method)
    torch.testing.assert_close(out[0, 1:], exact, rtol=1e-9, atol=1e-9)
    first, last = ends = torch.randn(2, 5, dtype=torch.float64)
    expected = torch.stack([first, 0.75 * first + 0.25 * last, 0.25 * first + 0.75 * last, last])
    out = resize_embedding(ends[None], 4)[0]
    torch.testing.assert_close(out, expected, rtol=1e-9, atol=1e-9)


def test_positions_of_a_checkpoint_are_resized_by_the_same_method():
    source, model = (ViT(TINY, img_size=side, pos_resize='offset') for side in (48, 80))
    model.load_state_dict(source.state_dict())
    expected = resize_positions(source.embed.pos_embed, (6, 6), (10, 10), 1, 'offset')
    assert torch.equal(model.embed.pos_embed, expected)


def test_gated_feed_forward_layer():
    layer, x = randomise(SwiGLU(6, 4)).double(), torch.randn(2, 3, 6, dtype=torch.float64)
    hidden = x @ layer.fc1.weight.T + layer.fc1.bias
    gate, value = hidden[..., :4], hidden[..., 4:]
    expected = (gate / (1 + (-gate).exp()) * value) @ layer.fc2.weight.T + layer.fc2.bias
    torch.testing.assert_close(layer(x), expected)


@pytest.mark.parametrize('attention', ['SoftmaxAttention', 'WindowAttention'])
@pytest.mark.parametrize('gate', [None, 'proj'])
def test_keys_without_bias(attention, gate):
    cfg = dict(type=attention, gate=gate)
    if attention == 'WindowAttention':
        cfg['window_size'] = 4  # pads the map with tokens that are the biases
    attn = randomise(build_attention(dict(cfg, key_bias=False), 16, 2))
    full = build_attention(cfg, 16, 2)
    state = {name: value.clone() for name, value in attn.state_dict().items()}
    state['in_proj.bias'][16:32] = 0
    full.load_state_dict(state)
    x, pos = torch.randn(2, 1, 30, 16)
    for position in (None, pos):
        torch.testing.assert_close(attn(x, (5, 6), position), full(x, (5, 6), position))
    attn(x, (5, 6), pos).square().sum().backward()
    grad = attn.in_proj.bias.grad
    assert not grad[16:32].any() and grad[:16].all() and grad[32:].all()


def test_rotation_by_coordinates():
    """Phases by loops; an image of twice the height has places twice as dense."""
    (height, width), d, base = (3, 4), 16, 100.0
    x = torch.randn(height * width, d, dtype=torch.float64)
    augment = torch.tensor([[0.25, -0.5], [1.5, 2.0]])
    for moved in (None, augment):
        out = apply_rotary(x, Rotary((height, width), d, base, 0, 1, True, moved))
        for i in range(height):
            for j in range(width):
                places = [2 * (i + 0.5) / height - 1, 2 * (j + 0.5) / width - 1]
                if moved is not None:
                    places = [(p + s) * f for p, s, f in zip(places, *moved.tolist())]
                for pair in range(d // 2):
                    axis, t = divmod(pair, d // 4)
                    angle = 2 * math.pi * places[axis] * base ** (-t / (d // 4))
                    a, b = x[i * width + j, 2 * pair : 2 * pair + 2].tolist()
                    expected = (
                        a * math.cos(angle) - b * math.sin(angle),
                        b * math.cos(angle) + a * math.sin(angle),
                    )
                    found = out[i * width + j, 2 * pair : 2 * pair + 2].tolist()
                    assert found == pytest.approx(expected, abs=1e-12)


def test_coordinates_in_attentions():
    """Extra tokens are not rotated, the other ones by the table; packed images by their own."""
    attn = randomise(build_attention(dict(type='SoftmaxAttention', rotary=dict(base=50.0)), 32, 2))
    x = torch.randn(1, 2 + 12, 32)
    q, k, v = (attn.split_heads(t) for t in attn.in_proj(x).chunk(3, -1))
    rotary = Rotary((3, 4), 16, 50.0, 0, 1, True)
    q, k = (torch.cat([t[:, :, :2], apply_rotary(t[:, :, 2:], rotary)], 2) for t in (q, k))
    expected = attn.proj(scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
    torch.testing.assert_close(attn(x, (3, 4), num_extra_tokens=2), expected)
    for kind in ('SoftmaxAttention', 'RALA', 'MALA', 'LinearAttention', 'RWGKA'):
        attn = randomise(build_attention(dict(type=kind, rotary=dict(base=50.0)), 32, 2)).eval()
        images = [torch.randn(1, 1 + h * w, 32) for h, w in ((3, 4), (5, 2))]
        packed = attn(torch.cat(images, 1), PackedShapes([(3, 4), (5, 2)]), num_extra_tokens=1)
        alone = [attn(i, s, num_extra_tokens=1) for i, s in zip(images, ((3, 4), (5, 2)))]
        torch.testing.assert_close(packed, torch.cat(alone, 1), rtol=1e-4, atol=1e-4)


def test_augmented_rotation_of_packed_images():
    shapes, augment = [(3, 4), (5, 2)], torch.tensor([[0.25, -0.5], [1.5, 2.0]])
    packed = PackedShapes(shapes).with_extra_tokens(1)
    together, *alone = (
        Rotary(maps, 16, 100.0, extra, 1, True, augment)
        for maps, extra in ((packed, 0), *((shape, 1) for shape in shapes))
    )
    expected = torch.cat([rotary.angles(torch.float32) for rotary in alone])
    assert torch.equal(together.angles(torch.float32), expected)


def test_augmentation_of_coordinates():
    drawn = torch.stack([RotaryCoordinates(rescale=3).draw('cpu') for _ in range(400)])
    assert not drawn[:, 0].any() and torch.equal(drawn[:, 1, 0], drawn[:, 1, 1])
    logs = drawn[:, 1, 0].log()  # even on a log scale
    assert 0.95 * math.log(3) < logs.abs().max() <= math.log(3) and abs(logs.mean()) < 0.1
    assert RotaryCoordinates().draw('cpu') is None
    for wrong, message in (
        (dict(rescale=0.5), 'rotary.rescale must be a finite number of at least 1, got 0.5'),
        (dict(base=None), 'rotary.base must be a finite number above 0, got None'),
        (dict(rescale=math.nan), 'rotary.rescale'), (dict(base=0), 'rotary.base must be'),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            RotaryCoordinates(**wrong)


def test_training_moves_the_places_also_when_recomputed():
    model = randomise(ViT(TINY, rotary=dict(rescale=2.0), num_registers=2))
    assert all(layer.attn.rotary and layer.attn.coordinates.base == 100 for layer in model.layers)
    image = torch.randn(1, 3, 48, 64)
    with torch.no_grad():
        still, moved = model.eval()(image)[0], [model.train()(image)[0] for _ in range(2)]
    assert torch.equal(model.eval()(image)[0], still)
    assert not moved[0].allclose(moved[1]) and not moved[0].allclose(still)
    grads = []
    for model.with_cp in (False, True):
        torch.manual_seed(0)
        model.train()(image)[0].square().mean().backward()
        grads.append([parameter.grad for parameter in model.parameters()])
        model.zero_grad(set_to_none=True)
    torch.testing.assert_close(*grads)


# Options together


def test_registers_have_no_position_and_lie_behind_the_class_token():
    model = randomise(ViT(TINY, num_registers=3, out_indices=(0,)))
    tokens, hw_shape = model.embed(torch.zeros(1, 3, 48, 48))
    state = model.embed.state_dict()
    assert hw_shape == (6, 6) and model.num_extra_tokens(0) == 4
    torch.testing.assert_close(tokens[:, :1], state['cls_token'] + state['pos_embed'][:, :1])
    assert torch.equal(tokens[:, 1:4], state['registers'])
    expected = state['proj.bias'] + state['pos_embed'][:, 1:]
    torch.testing.assert_close(tokens[:, 4:], expected)


def test_first_norm():
    model = randomise(ViT(TINY, pre_norm=True, pos_embed=False, with_cls_token=False))
    image = torch.randn(1, 3, 48, 48)
    tokens, norm = model.embed.proj(image).flatten(2).mT, model.embed.norm
    centred = tokens - tokens.mean(-1, keepdim=True)
    expected = centred / (centred.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    torch.testing.assert_close(model.embed(image)[0], expected * norm.weight + norm.bias)
    frozen = ViT(TINY, pre_norm=True, num_registers=1, frozen_stages=0)
    assert not any(parameter.requires_grad for parameter in frozen.embed.parameters())


def test_every_attention_serves_or_says_why():
    refused = {}
    for name in registered_subclasses(BaseAttention):
        try:
            model = ViT(dict(TINY, depth=1, rotary=dict(base=100.0)), name, num_registers=2)
        except ValueError as error:
            refused[name] = str(error)
            assert '\n' not in str(error) and name in str(error)
            continue
        out = model.eval()(torch.randn(1, 3, 48, 64))[0]
        assert out.shape == (1, 32, 6, 8) and out.isfinite().all()
    reasons = ('does not support extra tokens', 'does not support rotary', 'of its own')
    assert all(any(reason in message for reason in reasons) for message in refused.values())
    assert 'SoftmaxAttention' not in refused and 'MALA' not in refused and 'RWGKA' not in refused
    for rotary in (True, dict()):
        with pytest.raises(ValueError, match='rotary=False in its attn_cfg, or take another att'):
            ViT(TINY, 'VSSDAttention', rotary=rotary)
    ViT(TINY, dict(type='VSSDAttention', rotary=False), rotary=True, with_cls_token=False)


def test_arguments_override_the_architecture():
    with torch.device('meta'):
        model = ViT('dinov2-s-reg', img_size=224, num_registers=0, act='gelu_tanh')
    assert model.embed.registers is None and model.embed.grid == (16, 16)
    assert model.arch['pos_resize'] == 'antialias' and model.layers[0].gamma1 is not None


def test_an_activation_of_the_architecture_is_no_choice_of_the_caller():
    with torch.device('meta'):
        model = ViT('clip-b16', ffn='swiglu')
    assert sum(isinstance(module, SwiGLU) for module in model.modules()) == 12


def test_unknown_option_of_coordinates():
    with pytest.raises(TypeError, match="SoftmaxAttention rejects .*'scale'"):
        ViT(TINY, rotary=dict(scale=2))


@pytest.mark.skipif(
    not hasattr(torch.compiler, 'is_exporting'), reason='dynamic sizes need torch.export of 2.7'
)
@pytest.mark.parametrize('method', ['antialias', 'offset'])
def test_exports_with_dynamic_sizes(method):
    options = dict(depth=1, num_registers=1, key_bias=False, rotary=dict(rescale=2.0))
    model = ViT(dict(TINY, **options), pos_resize=method).eval()
    sides = {dim: 8 * torch.export.Dim(name, min=2, max=20) for dim, name in ((2, 'h'), (3, 'w'))}

    def export():
        return torch.export.export(model, (torch.randn(1, 3, 64, 80),), dynamic_shapes=(sides,))

    if method == 'offset':
        with pytest.raises(ValueError, match="Export it at a fixed size, or set pos_resize='bicu"):
            export()
        return
    exported, image = export().module(), torch.randn(1, 3, 40, 96)
    torch.testing.assert_close(exported(image)[0], model(image)[0])


@pytest.mark.filterwarnings('ignore::torch.jit.TracerWarning')
@pytest.mark.filterwarnings('ignore:.*torch.jit.trace:DeprecationWarning')
@pytest.mark.parametrize('method', ['bicubic', 'antialias', 'offset'])
def test_traces_at_other_sizes(method):
    model = ViT(dict(TINY, depth=1), pos_resize=method).eval()
    image, other = torch.randn(2, 1, 3, 40, 64)
    with torch.no_grad():
        traced = torch.jit.trace(model, image)
        torch.testing.assert_close(traced(other), model(other))
