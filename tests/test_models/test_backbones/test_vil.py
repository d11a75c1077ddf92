"""ViL compared with recorded outputs of the release; positions, bad input."""

from ast import literal_eval

import pytest
import torch
import torch.nn.functional as F

from mmlinattn.checkpoints import CheckpointError
from mmlinattn.checkpoints.converters import convert
from mmlinattn.checkpoints.converters.key_mapping import fuse
from mmlinattn.models.backbones import ViL
from tests.recordings import assert_near, below

TINY = dict(
    embed_dims=(8, 12, 16, 20), depths=(1, 2, 1, 1), num_heads=(1, 2, 2, 4),
    global_tokens=(1, 2, 1, 0),
)  # fmt: skip
SIDE, WINDOW = 64, 3


def build(**kwargs) -> ViL:
    return ViL(TINY, window_size=WINDOW, img_size=SIDE, **kwargs)


def recorded(golden, position):
    """Return arguments of ViL, recorded tensors for one kind of position, and the image."""
    tensors, metadata = golden('vil_released')
    sizes = {name: literal_eval(value) for name, value in metadata.items()}
    names = dict(embed_dims='dims', depths='depths', num_heads='heads')
    arch = {name: sizes[theirs] for name, theirs in names.items()}
    arch['global_tokens'] = sizes['global_tokens']
    options = dict(position=position, window_size=sizes['window_size'], img_size=SIDE)
    return dict(arch=arch, **options), below(tensors, f'{position}.'), tensors['image']


def from_recorded(options, case, **kwargs):
    """Return a ViL and a classification head with the recorded weights."""
    converted = convert(below(case, 'weight.'), source='vil')
    head = [converted.pop(f'head.fc.{name}') for name in ('weight', 'bias')]
    model = ViL(**options, **kwargs).eval()
    state = below(converted, 'backbone.')
    if not model.out_norms:
        state = {name: value for name, value in state.items() if 'out_norms' not in name}
    model.load_state_dict(state)
    return model, head


def test_skipped_and_unsupported_weights(golden, capsys):
    _, case, _ = recorded(golden, 'absolute')
    weights = below(case, 'weight.')
    convert(weights, source='vil')
    printed = capsys.readouterr().out
    # Weight and bias of three projections in each of three blocks; the last stage's positions.
    assert 'left out 18 second names of projections that global tokens share' in printed
    assert 'left out 1 empty positions of stages without global tokens' in printed
    assert printed.count('left out') == 2
    weights['layer1.1.attn.kv_global.bias'] = torch.ones(16)
    with pytest.raises(CheckpointError, match='kv_global.bias: global tokens .* of their own'):
        convert(weights, source='vil')
    with pytest.raises(CheckpointError, match='query_conv'):
        convert({'layer1.1.attn.query_conv.weight': torch.ones(1)}, source='vil')


@pytest.mark.parametrize('position', ['absolute', 'relative'])
def test_equals_the_released_code(golden, position):
    options, case, image = recorded(golden, position)
    outs = from_recorded(options, case, out_norm=False)[0](image)
    assert_near(outs, [case[f'stage.{i}'] for i in range(4)])
    model, head = from_recorded(options, case, out_indices=(3,), out_type='avg_featmap')
    image = image.clone().requires_grad_()
    logits = F.linear(model(image)[0], *head)
    assert (logits - case['logits']).abs().max() < 1e-5
    (grad,) = torch.autograd.grad(logits.square().mean(), image)
    assert_near(grad, case['grad.image'])


@pytest.mark.parametrize('position', ['absolute', 'relative'])
def test_a_release_without_windows_is_not_taken_for_one_with_them(golden, position):
    options, case, image = recorded(golden, position)
    weights = {name: value for name, value in below(case, 'weight.').items() if '_glo' not in name}
    full = fuse(weights, ('attn.query', 'attn.kv'), 'attn.qkv')
    converted = below(convert(full, source='vil'), 'backbone.')
    attention = 'SoftmaxAttention' if position == 'absolute' else 'BiasedSoftmaxAttention'
    message = f'trained with the attentions {attention}, {attention}, .* the ViL has VisionLong'
    with pytest.raises(ValueError, match=message):
        ViL(**options, out_norm=False).load_state_dict(converted, strict=False)
    model = ViL(**options, attn_cfg=attention, out_norm=False).eval()
    kept = {name: value for name, value in converted.items() if 'out_norms' not in name}
    if position == 'absolute':  # other tables are of windows
        model.load_state_dict(kept)
        assert (model(image)[3] - case['stage.3']).abs().max() > 1e-4
    assert 'backbone.trained_attention' not in convert(weights, source='vil')


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


@pytest.mark.parametrize(
    'options, message',
    [
        (dict(arch=dict(TINY, embed_dims=(8, 12, 15, 20))), 'must be even'),
        (dict(arch=dict(TINY, global_tokens=-1)), r"\['global_tokens'\] .* at least 0, got -1"),
        (
            dict(arch=dict(TINY, depths=(1, 1, 0, 1))),
            r"\['depths'\] must be a positive integer, got 0",
        ),
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
        ViL(**dict(dict(arch=TINY), **options))
