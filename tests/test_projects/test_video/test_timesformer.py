"""TimeSformer compared with transformers and with attention over tokens picked by hand."""

from typing import List

import pytest
import torch
from mmengine.logging import MMLogger
from mmengine.model import BaseModule
from torch import Tensor, nn
from torch.nn import functional as F

from mmlinattn.checkpoints import CheckpointError
from mmlinattn.checkpoints.converters import convert
from mmlinattn.models.backbones import ViT
from mmlinattn.models.layers import BaseAttention, registered_subclasses
from mmlinattn.projects.video import TimeSformer
from mmlinattn.projects.video.space_time_block import (
    SCHEMES,
    STEPS,
    SpaceTimeBlock,
    merge_groups,
    split_groups,
)
from mmlinattn.utils.errors import InputError
from tests.foundation_models import renamed
from tests.recordings import assert_near, below

TINY = dict(embed_dims=16, num_heads=2, depth=2, patch_size=8, mlp_ratio=2)
SHAPE = (4, 6, 2)


def build(scheme='divided', arch=TINY, img_size=16, num_frames=4, **kwargs) -> TimeSformer:
    return TimeSformer(arch, scheme=scheme, img_size=img_size, num_frames=num_frames, **kwargs)


def randomise(module):
    for name, value in module.named_parameters():
        torch.nn.init.normal_(value, float('norm' in name and name.endswith('weight')), 0.3)
    return module


# Parameters (M) as printed in tables 1 and 2 of the paper, with the classifier of SSv2.
@pytest.mark.parametrize(
    'scheme, millions',
    [('space', 85.9), ('joint', 85.9), ('divided', 121.4), ('sparse', 121.4), ('axial', 156.8)],
)
def test_parameters_are_those_of_the_paper(scheme, millions):
    with torch.device('meta'):
        model, head = TimeSformer('b16', scheme=scheme), torch.nn.Linear(768, 174)
    count = sum(p.numel() for part in (model, head) for p in part.parameters())
    assert count / 1e6 == pytest.approx(millions, abs=0.05)


@pytest.mark.parametrize('scheme', ['divided', 'joint'])
def test_equals_recorded_outputs_of_transformers(golden, scheme):
    tensors, _ = golden('timesformer_small')
    converted = convert(below(tensors, f'{scheme}.weight.'), source='timesformer')
    model = build(scheme).eval()
    model.load_state_dict(below(converted, 'backbone.'), strict=False)
    clip = tensors['clip'].clone().requires_grad_()
    out, expected = model(clip), tensors[f'{scheme}.tokens']
    assert (out - expected[:, 0]).abs().max() < 1e-5
    (grad,) = torch.autograd.grad(out.square().mean(), clip)
    assert_near(grad, tensors[f'{scheme}.grad.clip'])
    model.out_type = 'featmap'
    patches = expected[:, 1:].unflatten(1, (2, 2, 4)).permute(0, 4, 3, 1, 2)  # theirs: H, W, T
    assert (model(clip) - patches).abs().max() < 1e-5


def test_space_attention_is_vit_on_each_frame():
    model = randomise(build('space')).eval()
    vit = ViT(TINY, img_size=16, out_indices=(0, 1), out_type='cls_token').eval()
    vit.load_state_dict(model.state_dict())
    vit.norm = torch.nn.Identity()  # the mean over frames comes before it
    clip = torch.randn(2, 3, 5, 16, 16)
    with torch.no_grad():
        frames = torch.stack([vit(clip[:, :, t])[1] for t in range(5)])
        torch.testing.assert_close(model(clip), model.norm(frames.mean(0)))
        shuffled = model(clip[:, :, [3, 1, 0, 4, 2]])
        torch.testing.assert_close(shuffled, model(clip))


def members(step, t, y, x):
    """The places that the token at (t, y, x) attends to, by the words of the paper."""
    frames, height, width = SHAPE
    near = {
        'joint': lambda s, v, u: True,
        'space': lambda s, v, u: s == t,
        'time': lambda s, v, u: (v, u) == (y, x),
        'width': lambda s, v, u: (s, v) == (t, y),
        'height': lambda s, v, u: (s, u) == (t, x),
        'local': lambda s, v, u: (v // 3, u // 1) == (y // 3, x // 1),
        'global': lambda s, v, u: (s - t) % 2 == (v - y) % 2 == (u - x) % 2 == 0,
    }[step]
    places = [(s, v, u) for s in range(frames) for v in range(height) for u in range(width)]
    return [i for i, place in enumerate(places) if near(*place)]


@pytest.mark.parametrize('step', STEPS)
def test_a_step_attends_within_its_groups(step):
    block = randomise(SpaceTimeBlock(8, 2, 1, 'SoftmaxAttention', steps=(step, 'joint')))
    attn, fc, norm = block.steps[0].attn, block.steps[0].fc, block.steps[0].norm
    clip = torch.randn(1, 48, 8)
    out = block.steps[0](clip, SHAPE, step, torch.nn.Identity())
    tokens = norm(clip)
    for i in (0, 7, 33, 47):
        t, y, x = i // 12, i // 2 % 6, i % 2
        group = members(step, t, y, x)
        q, k, v = attn.in_proj(tokens).chunk(3, -1)
        q, k, v = (z.unflatten(-1, (2, 4)).transpose(1, 2) for z in (q, k, v))
        found = F.scaled_dot_product_attention(q[:, :, [i]], k[:, :, group], v[:, :, group])
        expected = fc(attn.proj(found.transpose(1, 2).flatten(2)))
        torch.testing.assert_close(out[:, [i]], expected)


@pytest.mark.parametrize('step', STEPS)
def test_merging_undoes_splitting(step):
    clip = torch.randn(2, 48, 3)
    groups, inner = split_groups(clip, SHAPE, step)
    assert groups.shape[2] == inner[0] * inner[1] * inner[2]
    assert torch.equal(merge_groups(groups, SHAPE, step), clip)


@pytest.mark.parametrize('scheme', SCHEMES)
def test_gradients_are_those_of_finite_differences(scheme):
    torch.manual_seed(0)
    arch = dict(embed_dims=4, num_heads=1, depth=1, patch_size=2, mlp_ratio=1)
    model = randomise(build(scheme, arch, img_size=4, num_frames=2)).double()
    clip = torch.randn(1, 3, 2, 4, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(model, clip)


@pytest.mark.parametrize('scheme', SCHEMES)
@pytest.mark.parametrize(
    'attn_cfg',
    [
        'SoftmaxAttention', 'RWGKA', 'LinearAttention', dict(type='RALA', rotary=False, lepe=0),
        dict(type='ClipRippleAttention', max_distance=2),
    ],
    ids=str,
)  # fmt: skip
def test_every_parameter_learns_and_bfloat16_is_close(scheme, attn_cfg):
    torch.manual_seed(0)
    # A class token does not see the rings of the last layer.
    model = randomise(
        build(scheme, attn_cfg=attn_cfg, out_type='avg_featmap', with_cls_token=False)
    )
    clip = torch.randn(2, 3, 4, 16, 16)
    out = model(clip)
    out.square().mean().backward()
    for name, p in model.named_parameters():
        assert p.grad is not None and torch.isfinite(p.grad).all() and p.grad.any(), name
    with torch.autocast('cpu', dtype=torch.bfloat16):
        half = model(clip)
    assert (half.float() - out).norm() < 0.05 * out.norm()


def test_other_lengths_are_logged_once(caplog, monkeypatch):
    monkeypatch.setattr(MMLogger.get_current_instance(), 'handlers', [caplog.handler])
    model = build().eval()
    model(torch.randn(1, 3, 4, 16, 16))
    assert 'resized' not in caplog.text
    for frames in (6, 8):
        model(torch.randn(1, 3, frames, 16, 16))
    assert caplog.text.count('time embedding of 4 frames is resized') == 1


def test_checkpointing_changes_nothing():
    model = randomise(build('axial'))
    clip = torch.randn(1, 3, 4, 16, 16)
    grads = []
    for model.with_cp in (False, True):
        model.zero_grad()
        model(clip).square().sum().backward()
        grads.append([p.grad.clone() for p in model.parameters()])
    torch.testing.assert_close(*grads)


def test_image_weights_give_the_image_model_on_a_still_clip():
    vit = randomise(ViT(TINY, img_size=16, out_type='cls_token')).eval()
    image = torch.randn(2, 3, 16, 16)
    for scheme in SCHEMES:
        model = build(scheme).eval()
        model.load_state_dict(vit.state_dict())
        temporal = [p for name, p in model.named_parameters() if '.steps.' in name]
        assert len(temporal) == 2 * 8 * (len(SCHEMES[scheme]) - 1)
        if scheme in ('divided', 'space'):  # jointly, a patch has four copies
            (expected,), out = vit(image), model(image[:, :, None].expand(-1, -1, 4, -1, -1))
            torch.testing.assert_close(out, expected)
    step, layer = build('divided'), vit.layers[1]
    step.load_state_dict(vit.state_dict())
    assert torch.equal(step.layers[1].steps[0].attn.in_proj.weight, layer.attn.in_proj.weight)
    assert torch.equal(step.layers[1].steps[0].norm.weight, layer.norm1.weight)
    assert not step.layers[1].steps[0].fc.weight.any()


def test_init_weights_keeps_new_steps_at_zero():
    model = build('axial')
    model.init_weights()
    for layer in model.layers:
        for step in layer.steps:
            assert not step.fc.weight.any() and step.attn.in_proj.weight.any()


def test_damaged_weights_are_not_completed():
    model = build('divided')
    weights = model.state_dict()
    del weights['layers.0.steps.0.fc.weight']
    with pytest.raises(RuntimeError, match=r'layers\.0\.steps\.0\.fc\.weight'):
        build('divided').load_state_dict(weights)


def test_other_clip_lengths_and_sizes():
    model = randomise(build('joint')).eval()
    for frames, height, width in ((1, 16, 16), (6, 13, 30)):
        assert model(torch.randn(1, 3, frames, height, width)).shape == (1, 16)
    longer = build('joint', num_frames=8).eval()
    longer.load_state_dict(model.state_dict())
    times = F.interpolate(model.embed.time_embed.mT, size=8, mode='linear').mT
    torch.testing.assert_close(longer.embed.time_embed, times)


def test_names_of_the_release_and_of_mmaction_convert(golden):
    tensors, _ = golden('timesformer_small')
    expected = convert(below(tensors, 'divided.weight.'), source='timesformer')
    released = renamed(
        expected, (r'^backbone\.', ''), (r'^embed\.proj', 'patch_embed.proj'), (r'^embed\.', ''),
        ('^layers', 'blocks'), (r'steps\.0\.norm', 'temporal_norm1'),
        (r'steps\.0\.(attn|fc)', r'temporal_\1'), ('in_proj', 'qkv'), ('ffn', 'mlp'),
    )  # fmt: skip
    mmaction = renamed(
        expected, (r'^backbone\.', ''), (r'^embed\.proj', 'patch_embed.projection'),
        (r'^embed\.', ''), ('^layers', 'transformer_layers.layers'),
        (r'steps\.0\.fc', 'attentions.0.temporal_fc'), (r'steps\.0\.', 'attentions.0.'),
        (r'(?<=\d)\.attn', '.attentions.1.attn'), (r'attentions\.0\.attentions\.1', 'attentions.0'),
        (r'attn\.in_proj\.', 'attn.in_proj_'), (r'attn\.proj', 'attn.out_proj'),
        ('norm1', 'attentions.1.norm'), ('norm2', 'ffns.0.norm'),
        (r'ffn\.fc1', 'ffns.0.layers.0.0'), (r'ffn\.fc2', 'ffns.0.layers.1'),
    )  # fmt: skip
    assert 'blocks.1.temporal_attn.qkv.weight' in released and 'time_embed' in released
    assert 'transformer_layers.layers.1.attentions.0.attn.in_proj_bias' in mmaction
    for names in (
        {f'model.{name}': value for name, value in released.items()},
        {f'backbone.{name}': value for name, value in mmaction.items()},
    ):
        found = convert(names, source='timesformer')
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
    with pytest.raises(CheckpointError, match='blocks.0.unknown'):
        convert({'model.blocks.0.unknown': torch.zeros(1)}, source='timesformer')


def test_is_found_by_name_where_mmaction_has_its_own():
    from mmengine.registry import MODELS, Registry

    child = Registry('model', parent=MODELS, scope='videoframework')
    child.register_module('TimeSformer', module=torch.nn.Identity)
    found = child.build(dict(type='mmengine.TimeSformer', arch=TINY, img_size=16))
    assert isinstance(found, TimeSformer)


@pytest.mark.parametrize(
    'options, error',
    [
        (dict(scheme='diagonal'), "scheme must be one of .* got 'diagonal'"),
        (dict(scheme=['time', 'depth']), r"got \['time', 'depth'\]"),
        (dict(scheme=[]), r'got \[\]'),
        (dict(num_frames=0), 'num_frames must be a positive integer, got 0'),
        (dict(cls_token_from=1), 'cls_token_from must be 0 for clips, got 1'),
        (dict(arch=dict(TINY, cpe=True)), 'cpe must be False for clips, got True'),
        (dict(arch=dict(TINY, key_bias=False)), 'key_bias must be True for clips, got False'),
        (dict(arch=dict(TINY, ffn='swiglu')), "ffn must be 'mlp' for clips, got 'swiglu'"),
        (dict(img_size=20), 'img_size must be a multiple of patch_size=8, got 20'),
        (dict(scheme='joint', attn_cfg='WindowAttention', with_cls_token=False,
              out_type='featmap'), 'WindowAttention .* does not support clips'),
        (dict(scheme='joint', attn_cfg='RippleAttention'), 'or take ClipRippleAttention'),
        (dict(scheme='joint', attn_cfg='RALA'), 'set rotary=False'),
        (dict(scheme='joint', attn_cfg=dict(type='LinearAttention', position='RotaryPosition')),
         'set position=None'),
    ],
)  # fmt: skip
def test_bad_options_are_named(options, error):
    with pytest.raises(ValueError, match=error):
        build(**options)


@pytest.mark.parametrize(
    'shape, scheme, error',
    [
        ((2, 3, 16, 16), 'joint', r'takes \(B, C, T, H, W\), got \(2, 3, 16, 16\)$'),
        ((1, 3, 4, 24, 16), 'sparse', '3 rows of patches'),
        ((1, 3, 5, 16, 16), 'sparse', '5 frames of patches'),
    ],
)
def test_bad_clips_are_named(shape, scheme, error):
    kind = InputError if scheme == 'sparse' else ValueError
    with pytest.raises(kind, match=error):
        build(scheme)(torch.randn(shape))


def test_windows_serve_single_frames():
    model = build('divided', attn_cfg='WindowAttention', with_cls_token=False, out_type='featmap')
    assert model(torch.randn(1, 3, 4, 16, 16)).shape == (1, 16, 4, 2, 2)


class Clips(BaseModule):
    """TimeSformer with the interface of a backbone of images: an image is four frames."""

    def __init__(self, attn_cfg: str) -> None:
        super().__init__()
        arch = dict(embed_dims=16, num_heads=2, depth=2, patch_size=8)
        self.model = TimeSformer(
            arch, attn_cfg, num_frames=4, img_size=(16, 80), with_cls_token=False,
            out_type='featmap',
        )  # fmt: skip
        for layer in self.model.layers:  # starts at 0, behind which nothing learns
            nn.init.normal_(layer.steps[0].fc.weight, std=0.3)

    def forward(self, image: Tensor) -> List[Tensor]:
        return [self.model(image.unflatten(2, (4, 16)))]


ATTENTIONS = [
    name
    for name, cls in registered_subclasses(BaseAttention).items()
    if cls.__module__.startswith('mmlinattn.')
]


@pytest.mark.parametrize('attention', ATTENTIONS)
def test_any_attention(attention):
    model, image = Clips(attention), torch.randn(2, 3, 64, 80)
    (out,) = model(image)
    assert torch.isfinite(out).all()
    out.square().mean().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and torch.isfinite(parameter.grad).all(), name
    model.eval()
    with torch.no_grad():
        (both,), (alone,) = model(image), model(image[1:])
    torch.testing.assert_close(both[1:], alone, rtol=1e-4, atol=1e-5)


def test_attentions_by_layer():
    arch = dict(embed_dims=16, num_heads=2, depth=3, patch_size=8)
    attn_cfg = dict(default='LinearAttention', softmax=['last1'])
    model = TimeSformer(arch, attn_cfg, num_frames=2, img_size=16)
    kinds = [{type(m).__name__ for m in layer.modules() if isinstance(m, BaseAttention)}
             for layer in model.layers]  # fmt: skip
    assert kinds == [{'LinearAttention'}, {'LinearAttention'}, {'SoftmaxAttention'}]


def test_registers():
    model = build(num_registers=2).eval()
    assert model(torch.randn(1, 3, 4, 16, 16)).shape == (1, 16)


def test_lists_of_clips_are_refused():
    error = r'takes one tensor \(B, C, T, H, W\), got a list of 2 clips: call it for each clip$'
    with pytest.raises(TypeError, match=error):
        build()([torch.zeros(3, 4, 16, 16)] * 2)
