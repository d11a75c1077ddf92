"""ViL compared with its definition and the release; parameters of the paper."""

from ast import literal_eval

import pytest
import torch
import torch.nn.functional as F

from mmlinattn.checkpoints import CheckpointError, convert
from mmlinattn.models.backbones import ViL

DIMS, DEPTHS, HEADS, GLOBAL = (8, 12, 16, 20), (1, 2, 1, 1), (1, 2, 2, 4), (1, 2, 1, 0)
TINY = dict(embed_dims=DIMS, depths=DEPTHS, num_heads=HEADS, global_tokens=GLOBAL)
SIDE, WINDOW = 64, 3


def build(**kwargs) -> ViL:
    return ViL(TINY, window_size=WINDOW, img_size=SIDE, **kwargs)


def released_weights() -> dict:
    """Return random weights with the names of the release."""
    weights, channels, places = {}, 3, SIDE

    def put(name, *shape):
        weights[name] = torch.randn(shape, dtype=torch.float64) * 0.3

    def layer(name, *shape):
        put(f'{name}.weight', *shape)
        put(f'{name}.bias', shape[0])

    for i, (dim, depth, extra) in enumerate(zip(DIMS, DEPTHS, GLOBAL)):
        patch, stage = 2 if i else 4, f'layer{i + 1}'
        places //= patch
        layer(f'{stage}.0.proj', dim, channels, patch, patch)
        layer(f'{stage}.0.norm_embed', dim)
        if extra:
            put(f'{stage}.0.cls_token', 1, extra, dim)
        put(f'{stage}.0.cls_pos_embed', 1, extra, dim)  # empty without extra tokens
        put(f'{stage}.0.x_pos_embed', 1, places, dim // 2)
        put(f'{stage}.0.y_pos_embed', 1, places, dim // 2)
        for j in range(depth):
            attn, mlp = f'{stage}.{2 * j + 1}', f'{stage}.{2 * j + 2}'
            layer(f'{attn}.norm', dim)
            if i < 2:
                for name, width in (('query', dim), ('kv', 2 * dim), ('proj', dim)):
                    layer(f'{attn}.attn.{name}', width, dim)
                    for part in ('weight', 'bias'):  # one layer under two names
                        shared = weights[f'{attn}.attn.{name}.{part}']
                        weights[f'{attn}.attn.{name}_global.{part}'] = shared
            else:
                layer(f'{attn}.attn.qkv', 3 * dim, dim)
                layer(f'{attn}.attn.proj', dim, dim)
            layer(f'{mlp}.norm', dim)
            layer(f'{mlp}.mlp.fc1', 4 * dim, dim)
            layer(f'{mlp}.mlp.fc2', dim, 4 * dim)
        channels = dim
    layer('norm', channels)
    layer('head', 9, channels)
    return weights


def attention_mask(hw, extra, window):
    """Return which token attends to which, (E + N, E + N)."""
    rows, columns = (torch.arange(size) // window for size in hw)
    rows, columns = rows[:, None].expand(hw).flatten(), columns.expand(hw).flatten()
    near = ((rows[:, None] - rows).abs() <= 1) & ((columns[:, None] - columns).abs() <= 1)
    return F.pad(near, (extra, 0, extra, 0), value=True)


def definition(weights, x):
    def w(name):
        return weights[f'{name}.weight'], weights[f'{name}.bias']

    def norm(name, x):
        return F.layer_norm(x, x.shape[-1:], *w(name), eps=1e-6)

    for i, (dim, depth, heads, extra) in enumerate(zip(DIMS, DEPTHS, HEADS, GLOBAL)):
        stage = f'layer{i + 1}'
        x = F.conv2d(x, *w(f'{stage}.0.proj'), stride=2 if i else 4)
        hw = x.shape[-2:]
        x = norm(f'{stage}.0.norm_embed', x.flatten(2).mT)
        rows, columns = (weights[f'{stage}.0.{axis}_pos_embed'][0] for axis in 'xy')
        x = x + torch.cat([rows.repeat_interleave(hw[1], 0), columns.repeat(hw[0], 1)], 1)
        if extra:
            first = weights[f'{stage}.0.cls_token'] + weights[f'{stage}.0.cls_pos_embed']
            x = torch.cat([first.expand(len(x), -1, -1), x], 1)
        for j in range(depth):
            attn, mlp = f'{stage}.{2 * j + 1}', f'{stage}.{2 * j + 2}'
            y = norm(f'{attn}.norm', x)
            if i < 2:
                q = F.linear(y, *w(f'{attn}.attn.query'))
                k, v = F.linear(y, *w(f'{attn}.attn.kv')).chunk(2, -1)
            else:
                q, k, v = F.linear(y, *w(f'{attn}.attn.qkv')).chunk(3, -1)
            q, k, v = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in (q, k, v))
            logits = q @ k.mT * (dim // heads) ** -0.5
            if i < 2:
                logits = logits.masked_fill(~attention_mask(hw, extra, WINDOW), float('-inf'))
            y = (logits.softmax(-1) @ v).transpose(1, 2).flatten(2)
            x = x + F.linear(y, *w(f'{attn}.attn.proj'))
            hidden = F.gelu(F.linear(norm(f'{mlp}.norm', x), *w(f'{mlp}.mlp.fc1')))
            x = x + F.linear(hidden, *w(f'{mlp}.mlp.fc2'))
        x = x[:, extra:].mT.unflatten(-1, hw)
    return norm('norm', x.flatten(2).mT).mean(1)


def loaded(weights) -> ViL:
    converted = convert(weights, source='vil')
    assert converted.pop('head.fc.weight').shape == (9, 20)
    assert converted.pop('head.fc.bias').shape == (9,)
    model = build(out_indices=(3,), out_type='avg_featmap').double().eval()
    model.load_state_dict({name[len('backbone.') :]: value for name, value in converted.items()})
    return model


def test_equals_its_definition():
    weights = released_weights()
    model, image = loaded(weights), torch.randn(2, 3, SIDE, SIDE, dtype=torch.float64)
    with torch.no_grad():
        (out,), expected = model(image), definition(weights, image)
    assert (out - expected).norm() < 1e-9 * expected.norm()


def test_skipped_weights_are_counted(capsys):
    convert(released_weights(), source='vil')
    printed = capsys.readouterr().out
    # Weight and bias of three projections in each of three blocks; the last stage's positions.
    assert 'left out 18 second names of projections that global tokens share' in printed
    assert 'left out 1 empty positions of stages without global tokens' in printed
    assert printed.count('left out') == 2


def test_unsupported_weights_raise():
    weights = released_weights()
    weights['layer1.1.attn.kv_global.bias'] = torch.zeros(16)
    with pytest.raises(CheckpointError, match='kv_global.bias: global tokens .* of their own'):
        convert(weights, source='vil')
    with pytest.raises(CheckpointError, match='query_conv'):
        convert({'layer1.1.attn.query_conv.weight': torch.ones(1)}, source='vil')


def recorded(golden, position):
    """Return arguments of ViL, recorded tensors for one kind of position, and the image."""
    tensors, metadata = golden('vil_released')
    sizes = {name: literal_eval(value) for name, value in metadata.items()}
    arch = dict(
        embed_dims=sizes['dims'],
        depths=sizes['depths'],
        num_heads=sizes['heads'],
        global_tokens=sizes['global_tokens'],
    )
    options = dict(position=position, window_size=sizes['window_size'], img_size=SIDE)
    start = f'{position}.'
    case = {k[len(start) :]: v for k, v in tensors.items() if k.startswith(start)}
    return dict(arch=arch, **options), case, tensors['image']


def from_recorded(options, case, **kwargs):
    """Return a ViL and a classification head with the recorded weights."""
    weights = {k[7:]: v for k, v in case.items() if k.startswith('weight.')}
    converted = convert(weights, source='vil')
    head = [converted.pop(f'head.fc.{name}') for name in ('weight', 'bias')]
    model = ViL(**options, **kwargs).eval()
    state = {name[len('backbone.') :]: value for name, value in converted.items()}
    if not model.out_norms:
        state = {name: value for name, value in state.items() if 'out_norms' not in name}
    model.load_state_dict(state)
    return model, head


@pytest.mark.parametrize('position', ['absolute', 'relative'])
def test_equals_the_released_code(golden, position):
    options, case, image = recorded(golden, position)
    outs = from_recorded(options, case, out_norm=False)[0](image)
    for i, out in enumerate(outs):
        expected = case[f'stage.{i}']
        assert out.shape == expected.shape
        assert (out - expected).norm() < 1e-5 * expected.norm()
    model, head = from_recorded(options, case, out_indices=(3,), out_type='avg_featmap')
    image = image.clone().requires_grad_()
    logits = F.linear(model(image)[0], *head)
    assert (logits - case['logits']).abs().max() < 1e-5
    (grad,) = torch.autograd.grad(logits.square().mean(), image)
    assert (grad - case['grad.image']).norm() < 1e-5 * case['grad.image'].norm()


def test_relative_positions_load_into_windows_in_all_stages(golden, capsys):
    """Resize the tables of the last two stages to those of windows, as the released detectors."""
    options, case, image = recorded(golden, 'relative')
    options = dict(options, attn_cfg='VisionLongformerAttention', window_size=2)
    model, _ = from_recorded(options, case, out_norm=False)
    # Sides are 2 * 3 * w - 1 for windows, and 2 n - 1 for maps with n x n positions.
    printed = capsys.readouterr().out
    assert 'stages.0.0.attn.relative.table is resized from 11x11 to 7x7' in printed
    assert 'stages.3.0.attn.relative.table is resized from 3x3 to 7x7' in printed
    assert 'stages.2.0.attn' not in printed
    assert [tuple(out.shape[-2:]) for out in model(torch.cat([image, image], 3))] == [
        (16, 32), (8, 16), (4, 8), (2, 4),
    ]  # fmt: skip


# Table 2 of the paper and the released code, in millions, with the classifier.
@pytest.mark.parametrize(
    'arch, expected',
    [
        ('tiny', 6.7), ('small', 24.6), ('medium', 39.7), ('medium-wide', 39.8),
        ('base', 55.7), ('base-wide', 79.0),
    ],
)  # fmt: skip
def test_parameters(arch, expected):
    with torch.device('meta'):
        model = ViL(arch, out_indices=(3,))
    count = sum(value.numel() for value in model.parameters())
    count += (model.arch['embed_dims'][3] + 1) * 1000
    assert count / 1e6 == pytest.approx(expected, abs=0.06)


def test_any_size():
    model = build().eval()
    assert [tuple(out.shape) for out in model(torch.randn(1, 3, 50, 70))] == [
        (1, 8, 13, 18), (1, 12, 7, 9), (1, 16, 4, 5), (1, 20, 2, 3),
    ]  # fmt: skip


def test_positions_of_another_size_are_resized(capsys):
    model = build()
    state = dict(model.state_dict())
    name = 'patch_embeds.0.row_embed'
    state[name] = torch.arange(8.0).view(1, 8, 1).expand(1, 8, 4)
    model.load_state_dict(dict(state))
    assert f'{name} is resized from 8 to 16' in capsys.readouterr().out
    middle = model.patch_embeds[0].row_embed[0, 1:-1, 0]
    torch.testing.assert_close(middle, torch.arange(1, 15) / 2 - 0.25)
    state[name] = torch.zeros(1, 8, 5)
    with pytest.raises(ValueError, match=r'row_embed has shape \(1, 8, 5\), the model needs'):
        model.load_state_dict(state)


def test_frozen_stages():
    model = build(frozen_stages=2).train()
    for parts in (model.patch_embeds, model.stages, model.out_norms.values()):
        learns = [any(p.requires_grad for p in part.parameters()) for part in parts]
        assert learns == [False, False, True, True]


@pytest.mark.parametrize(
    'arch, message',
    [
        (dict(TINY, embed_dims=(8, 12, 15, 20)), 'must be even'),
        (dict(TINY, global_tokens=-1), r"arch\['global_tokens'\] must be positive"),
        (dict(TINY, depths=(1, 1, 0, 1)), r"arch\['depths'\] must be positive"),
    ],
)
def test_bad_sizes(arch, message):
    with pytest.raises(ValueError, match=message):
        ViL(arch)


@pytest.mark.parametrize(
    'options, message',
    [
        (dict(position='none'), r"position must be one of \('absolute', 'relative'\), got 'none'"),
        (dict(window_size=(7, 7)), r'window_size must be a positive integer, or .* got \(7, 7\)'),
        (dict(window_size=None), 'window_size must be a positive integer, or .* got None'),
        (dict(window_size=(7, 0, 7, 7)), r'window_size must be .* got \(7, 0, 7, 7\)'),
        (dict(window_size=(7, 7, 0, 7)), r'window_size must be .* got \(7, 7, 0, 7\)'),
        (dict(window_size=(7, 7, 7, 2.5)), r'window_size must be .* got \(7, 7, 7, 2.5\)'),
        (dict(img_size=(224,)), r'img_size must be a positive integer, or two.* got \(224,\)'),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        ViL(TINY, **options)


def test_attention_without_support_for_global_tokens_raises():
    with pytest.raises(ValueError, match='WindowAttention does not support extra tokens'):
        build(attn_cfg='WindowAttention')
