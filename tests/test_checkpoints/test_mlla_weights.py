"""Files of MLLA as released, their names written out by hand, and the record of its attention."""

import pytest
import torch
from mmengine.registry import MODELS, DefaultScope
from torch import nn

from mmlinattn.checkpoints import CheckpointError, check_fits, save_checkpoint
from mmlinattn.checkpoints.converters import convert, kind_of
from mmlinattn.models.backbones import MLLA
from tests.recordings import below

DIMS, DEPTHS, HEADS = (8, 16, 32, 64), (1, 2, 1, 1), (1, 2, 2, 4)
ARCH = dict(embed_dims=DIMS, depths=DEPTHS, num_heads=HEADS, mlp_ratios=2)


def layer(name, *shape):
    return {f'{name}.weight': shape, f'{name}.bias': (shape[0],)}


def conv_norm(name, *shape, bias=False):
    statistics = {f'{name}.norm.running_{what}': (shape[0],) for what in ('mean', 'var')}
    statistics[f'{name}.norm.num_batches_tracked'] = ()
    conv = layer(f'{name}.conv', *shape) if bias else {f'{name}.conv.weight': shape}
    return {**conv, **layer(f'{name}.norm', shape[0]), **statistics}


def released(prefix=''):
    shapes = {
        **conv_norm('patch_embed.conv1', 4, 3, 3, 3),
        **conv_norm('patch_embed.conv2.0', 4, 4, 3, 3),
        **conv_norm('patch_embed.conv2.1', 4, 4, 3, 3),
        **conv_norm('patch_embed.conv3.0', 32, 4, 3, 3),
        **conv_norm('patch_embed.conv3.1', 8, 32, 1, 1),
    }
    for i, dim in enumerate(DIMS):
        for j in range(DEPTHS[i]):
            block = f'layers.{i}.blocks.{j}'
            for name in ('cpe1', 'cpe2', 'dwc', 'attn.lepe'):
                shapes.update(layer(f'{block}.{name}', dim, 1, 3, 3))
            for name in ('in_proj', 'act_proj', 'out_proj'):
                shapes.update(layer(f'{block}.{name}', dim, dim))
            for name in ('norm1', 'norm2'):
                shapes.update(layer(f'{block}.{name}', dim))
            shapes.update(layer(f'{block}.attn.qk', 2 * dim, dim))
            shapes.update(layer(f'{block}.mlp.fc1', 2 * dim, dim))
            shapes.update(layer(f'{block}.mlp.fc2', dim, 2 * dim))
            shapes[f'{block}.attn.rope.rotations'] = (56, 56, dim // 2, 2)
        if i < 3:
            down = f'layers.{i}.downsample.conv'
            shapes.update(layer(f'{down}.0.conv', 8 * dim, dim, 1, 1))
            shapes.update(layer(f'{down}.1.conv', 8 * dim, 1, 3, 3))
            shapes.update(conv_norm(f'{down}.2', 2 * dim, 8 * dim, 1, 1, bias=True))
    return {prefix + name: shape for name, shape in shapes.items()}


@pytest.fixture
def whole(tensors):
    """A detector: the norms of its outputs, and a convolution that stands for neck and heads."""
    shapes = released('backbone.')
    for i, dim in enumerate(DIMS):
        shapes.update(layer(f'backbone.norm{i}', dim))
    return tensors({**shapes, **layer('neck.lateral_convs.0.conv', 8, 8, 1, 1)})


@pytest.fixture
def classifier(tensors):
    return tensors({**released(), **layer('norm', 64), **layer('head', 10, 64)})


def test_detector(whole, capsys):
    converted = convert(whole, 'mlla')
    assert kind_of({k: v for k, v in converted.items() if not k.startswith('neck')}) == 'backbone'
    assert 'left out 5 rotary tables of 224x224 images' in capsys.readouterr().out
    assert 'neck.lateral_convs.0.conv.weight' in converted
    model = MLLA(ARCH)
    model.load_state_dict(below(converted, 'backbone.'))
    for name, theirs in {
        'stem.conv2.1.bn.running_var': 'patch_embed.conv2.1.norm.running_var',
        'stages.1.1.dwconv.weight': 'layers.1.blocks.1.dwc.weight',
        'stages.3.0.attn.in_proj.bias': 'layers.3.blocks.0.attn.qk.bias',
        'downsamples.2.2.conv.weight': 'layers.2.downsample.conv.2.conv.weight',
        'out_norms.0.weight': 'norm0.weight',
    }.items():
        assert torch.equal(model.state_dict()[name], whole[f'backbone.{theirs}']), name


def test_classifier_is_the_mean_of_the_normed_tokens(classifier):
    pytest.importorskip('mmpretrain', reason='the classifier needs MMPretrain')
    cfg = dict(
        type='ImageClassifier',
        backbone=dict(type='MLLA', arch=ARCH, out_indices=(3,)),
        neck=dict(type='GlobalAveragePooling'),
        head=dict(type='LinearClsHead', in_channels=64, num_classes=10),
    )
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        model = MODELS.build(cfg).eval()
    # Positive weights of 1 would overflow.
    classifier = {k: v * 0.1 if v.is_floating_point() else v for k, v in classifier.items()}
    model.load_state_dict(convert(classifier, 'mlla'))
    image = torch.randn(2, 3, 64, 96)
    with torch.no_grad():
        (tokens,) = model.backbone(image)
        logits = tokens.mean((2, 3)) @ classifier['head.weight'].mT + classifier['head.bias']
        torch.testing.assert_close(model(image), logits)


def test_another_attention_is_an_error(whole, tmp_path):
    path = tmp_path / 'mlla.pth'
    save_checkpoint(path, convert(whole, 'mlla'), {})
    other = MLLA(ARCH, ['MLLAAttention', 'RALA', 'MLLAAttention', 'MLLAAttention'])
    message = 'trained with the attentions MLLAAttention, .* MLLA has MLLAAttention, RALA, .*set'
    with pytest.raises(CheckpointError, match=message):
        check_fits(path, other, prefix='backbone.')


def test_unconverted_and_foreign_files(whole, classifier, tmp_path):
    path = tmp_path / 'released.pth'
    save_checkpoint(path, classifier, {})
    with pytest.raises(CheckpointError, match='--source mlla'):
        check_fits(path, nn.ModuleDict(dict(backbone=MLLA(ARCH, out_indices=(3,)))))
    with pytest.raises(CheckpointError, match='not those of --source swin, but of --source mlla'):
        convert(whole, 'swin')
    with pytest.raises(ValueError, match='say which release this is: source .*, mlla$'):
        convert(whole)
