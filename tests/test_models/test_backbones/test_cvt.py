"""CvT compared with recorded outputs of the release and of transformers; bad input."""

import json
from ast import literal_eval

import pytest
import torch
import torch.nn.functional as F

from mmlinattn.checkpoints import CheckpointError
from mmlinattn.checkpoints.converters import convert
from mmlinattn.models.backbones import CvT
from tests.recordings import assert_near, below

TINY = dict(embed_dims=(8, 16, 24), depths=(1, 2, 2), num_heads=(1, 2, 3))


def build(arch=TINY, **kwargs) -> CvT:
    return CvT(arch, **kwargs)


def check_classifier(converted, image, expected, **options):
    """Compare stages and logits of a CvT with converted weights; return a logits function."""
    head = [converted.pop(f'head.fc.{name}') for name in ('weight', 'bias')]
    state = below(converted, 'backbone.')
    model = build(out_indices=(2,), out_type='cls_token', **options).eval()
    model.load_state_dict(state)
    stages = build(out_norm=False, **options).eval()
    stages.load_state_dict({k: v for k, v in state.items() if not k.startswith('out_norms')})

    def logits(image):
        return F.linear(model(image)[0], *head)

    with torch.no_grad():
        assert_near(stages(image), [expected[f'stage.{i}'] for i in range(3)])
        assert (logits(image) - expected['logits']).abs().max() < 1e-5
    return logits


# transformers uses GELU instead of the release's x sigmoid(1.702 x).
@pytest.mark.parametrize('code, act', [('released', 'quick_gelu'), ('transformers', 'gelu')])
def test_equals_recorded_outputs(golden, code, act):
    tensors, metadata = golden('cvt_released')
    sizes = {name: literal_eval(metadata[name]) for name in ('dims', 'heads', 'depths')}
    arch = dict(embed_dims=sizes['dims'], num_heads=sizes['heads'], depths=sizes['depths'])
    weights = below(tensors, 'weight.')
    converted = convert(weights, source='cvt')
    if code == 'transformers':
        names = json.loads(metadata['transformers_names'])
        other = convert({names[k]: v for k, v in weights.items()}, source='cvt')
        torch.testing.assert_close(other, converted, rtol=0, atol=0)
    expected = below(tensors, f'{code}.')
    logits = check_classifier(converted, tensors['image'], expected, arch=arch, act=act)
    image = tensors['image'].clone().requires_grad_()
    (grad,) = torch.autograd.grad(logits(image).square().mean(), image)
    assert_near(grad, expected['grad.image'])


def test_unknown_name_raises():
    with pytest.raises(CheckpointError, match='stage0.blocks.0.attn.rel_pos'):
        convert({'stage0.blocks.0.attn.rel_pos': torch.zeros(1)}, source='cvt')


def test_outputs():
    model = build().eval()
    image = torch.randn(1, 3, 64, 96)
    assert [tuple(out.shape) for out in model(image)] == [
        (1, 8, 16, 24), (1, 16, 8, 12), (1, 24, 4, 6),
    ]  # fmt: skip
    assert len(build(out_indices=(0, 1)).stages) == 2
    assert build(out_indices=(0, 1)).cls_token is None
    plain = build(out_norm=False, with_cls_token=False)
    assert not plain.out_norms and plain(image)[2].shape == (1, 24, 4, 6)


def test_images_below_the_first_kernel():
    model = CvT(dict(embed_dims=(16, 32, 48), depths=(1, 1, 1), num_heads=(1, 2, 3))).eval()
    assert [tuple(out.shape[2:]) for out in model(torch.zeros(1, 3, 3, 9))] == [
        (1, 2),
        (1, 1),
        (1, 1),
    ]
    with pytest.raises(ValueError, match='at least 3x3 pixels, got 1x9'):
        model(torch.zeros(1, 3, 1, 9))


def test_stochastic_depth_in_the_last_stage_only():
    model = build(drop_path_rate=0.2)
    rates = [[block.drop_path.drop_prob for block in stage] for stage in model.stages]
    assert rates == [[0.0], [0.0, 0.0], [0.0, pytest.approx(0.2)]]


@pytest.mark.parametrize(
    'kwargs, message',
    [
        (dict(out_type='cls_token'), r'needs .* out_indices=\(2,\), got .*\(0, 1, 2\)'),
        (
            dict(out_type='cls_token', out_indices=(2,), with_cls_token=False),
            'needs with_cls_token=True .* got with_cls_token=False',
        ),
        (dict(attn_cfg=['RALA'] * 4), 'attn_cfg must be one attention, or 3: one per stage'),
        (dict(arch=dict(TINY, depths=(1, 1))), r"arch\['depths'\] must have 3 values"),
        (dict(out_indices=(3,)), 'out_indices must be a list of different stages in 0..2'),
    ],
)
def test_bad_options(kwargs, message):
    with pytest.raises(ValueError, match=message):
        build(**kwargs)


def test_attention_without_support_for_the_class_token_raises():
    with pytest.raises(ValueError, match='WindowAttention does not support extra tokens'):
        build(attn_cfg='WindowAttention')
    image = torch.randn(1, 3, 64, 64)
    assert len(build(attn_cfg='WindowAttention', with_cls_token=False)(image)) == 3
    assert len(build(attn_cfg='WindowAttention', out_indices=(0, 1))(image)) == 2


def test_compiled_checkpointing_counts_a_batch_once():
    torch.compiler.reset()
    model, image = build(with_cp=True, out_indices=(0,)), torch.randn(2, 3, 32, 32)
    # With torch 2.4 aot_eager, a backend for debugging, counts a batch twice.
    backend = 'inductor' if torch.__version__.startswith('2.4.') else 'aot_eager'
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    compiled(image)[0].square().mean().backward()
    norm = model.stages[0][0].attn.conv_q.bn
    assert int(norm.num_batches_tracked) == 1
    once = norm.running_mean.clone()
    norm.running_mean.zero_()
    model(image)[0].square().mean().backward()
    torch.testing.assert_close(norm.running_mean, once)
