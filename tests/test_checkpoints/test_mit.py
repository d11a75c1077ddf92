"""MiT weights under the names of the SegFormer release and of MMSegmentation."""

import pytest
import torch
from torch.nn import functional as F

from mmlinattn.checkpoints import CheckpointError, check_fits, save_checkpoint
from mmlinattn.checkpoints.converters import convert, kind_of
from mmlinattn.models.backbones import MixTransformer
from tests.recordings import below

ARCH = dict(embed_dims=(8, 16, 24, 32), depths=(1, 1, 2, 1), num_heads=(1, 2, 3, 4))


@pytest.fixture
def released() -> dict:
    """Random weights of a classifier under the released names, written out by hand."""
    weights = {}

    def add(name, *shape):
        weights[f'{name}.weight'] = torch.randn(shape)
        weights[f'{name}.bias'] = torch.randn(shape[0])

    channels = 3
    for i, (dim, depth, ratio) in enumerate(
        zip(ARCH['embed_dims'], ARCH['depths'], (8, 4, 2, 1)), 1
    ):
        kernel = 3 if i > 1 else 7
        add(f'patch_embed{i}.proj', dim, channels, kernel, kernel)
        add(f'patch_embed{i}.norm', dim)
        for j in range(depth):
            block = f'block{i}.{j}'
            add(f'{block}.norm1', dim)
            add(f'{block}.attn.q', dim, dim)
            add(f'{block}.attn.kv', 2 * dim, dim)
            add(f'{block}.attn.proj', dim, dim)
            if ratio > 1:
                add(f'{block}.attn.sr', dim, dim, ratio, ratio)
                add(f'{block}.attn.norm', dim)
            add(f'{block}.norm2', dim)
            add(f'{block}.mlp.fc1', 4 * dim, dim)
            add(f'{block}.mlp.dwconv.dwconv', 4 * dim, 1, 3, 3)
            add(f'{block}.mlp.fc2', dim, 4 * dim)
        add(f'norm{i}', dim)
        channels = dim
    add('head', 10, dim)
    return weights


def test_released_weights_load_strictly(released):
    converted = convert(released, source='mit')
    assert kind_of(converted) == 'classifier'
    assert torch.equal(converted['head.fc.weight'], released['head.weight'])
    MixTransformer(ARCH).load_state_dict(below(converted, 'backbone.'), strict=True)
    in_proj = converted['backbone.stages.2.1.attn.in_proj.weight']
    assert torch.equal(in_proj[:24], released['block3.1.attn.q.weight'])
    assert torch.equal(in_proj[24:], released['block3.1.attn.kv.weight'])
    sr = converted['backbone.stages.0.0.attn.sr.weight']
    assert torch.equal(sr, released['block1.0.attn.sr.weight'])


def released_head(weights, levels):
    """The head of the release in evaluation, from its names: coarsest level first."""

    def get(name):
        return weights[f'decode_head.{name}']

    maps = []
    for i in (4, 3, 2, 1):
        tokens = levels[i - 1].flatten(2).transpose(1, 2)
        linear = F.linear(tokens, get(f'linear_c{i}.proj.weight'), get(f'linear_c{i}.proj.bias'))
        level = linear.transpose(1, 2).unflatten(2, levels[i - 1].shape[-2:])
        maps.append(
            F.interpolate(level, levels[0].shape[-2:], mode='bilinear', align_corners=False)
        )
    x = F.conv2d(torch.cat(maps, 1), get('linear_fuse.conv.weight'))
    bn = (get(f'linear_fuse.bn.{n}') for n in ('running_mean', 'running_var', 'weight', 'bias'))
    x = F.relu(F.batch_norm(x, *bn))
    return F.conv2d(x, get('linear_pred.weight'), get('linear_pred.bias'))


def test_released_segmentor(released):
    pytest.importorskip('mmseg', reason='MMSegmentation comes with the extra "seg"')
    from mmlinattn.models.decode_heads import AllMLPHead

    for name in ('head.weight', 'head.bias'):
        del released[name]
    weights = {f'backbone.{name}': w for name, w in released.items()}
    head = {
        'conv_seg.weight': (19, 128, 1, 1), 'conv_seg.bias': (19,),  # unused by the release
        'linear_pred.weight': (19, 24, 1, 1), 'linear_pred.bias': (19,),
        'linear_fuse.conv.weight': (24, 96, 1, 1), 'linear_fuse.bn.weight': (24,),
        'linear_fuse.bn.bias': (24,), 'linear_fuse.bn.running_mean': (24,),
    }  # fmt: skip
    for i, dim in enumerate(ARCH['embed_dims'], 1):
        head |= {f'linear_c{i}.proj.weight': (24, dim), f'linear_c{i}.proj.bias': (24,)}
    weights |= {f'decode_head.{name}': torch.randn(shape) for name, shape in head.items()}
    weights['decode_head.linear_fuse.bn.running_var'] = torch.rand(24) + 0.5
    weights['decode_head.linear_fuse.bn.num_batches_tracked'] = torch.tensor(3)
    converted = convert(weights, source='mit')
    assert kind_of(converted) == 'segmentor'
    MixTransformer(ARCH).load_state_dict(below(converted, 'backbone.'), strict=True)

    ours = AllMLPHead(
        in_channels=ARCH['embed_dims'], in_index=[0, 1, 2, 3], channels=24, num_classes=19,
        norm_cfg=dict(type='BN'),
    ).eval()  # fmt: skip
    ours.load_state_dict(below(converted, 'decode_head.'))
    levels = [torch.randn(2, dim, 16 >> i, 24 >> i) for i, dim in enumerate(ARCH['embed_dims'])]
    torch.testing.assert_close(ours(levels), released_head(weights, levels), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ('attn_cfg', 'fits'),
    [(dict(type='RALA', gate=None), True), ('RWGKA', True), ('RALA', False), ('MALA', False)],
    ids=['RALA without a gate', 'RWGKA', 'RALA', 'MALA'],
)
def test_softmax_weights_in_linear_attention(released, tmp_path, attn_cfg, fits):
    """A file without a gate fits without it; the error says so."""
    save_checkpoint(tmp_path / 'mit.pth', convert(released, 'mit'), {})
    model = MixTransformer(ARCH, attn_cfg=attn_cfg)
    if fits:
        report = check_fits(tmp_path / 'mit.pth', model, prefix='backbone.')
        new = {name.split('.attn.')[1].split('.')[0] for name in report.missing}
        assert new == ({'anchors_q'} if attn_cfg == 'RWGKA' else {'lepe'})
        kept = {name.split('.')[-2] for name in report.unexpected}
        assert kept == {'sr', 'norm'}
        return
    with pytest.raises(CheckpointError, match='The model has a gate .* add gate=None to attn_cfg'):
        check_fits(tmp_path / 'mit.pth', model, prefix='backbone.')


def test_the_gate_is_no_cause_of_another_width(released, tmp_path):
    save_checkpoint(tmp_path / 'mit.pth', convert(released, 'mit'), {})
    wider = dict(ARCH, embed_dims=(8, 16, 24, 48))
    with pytest.raises(CheckpointError, match='keys of another shape') as error:
        check_fits(tmp_path / 'mit.pth', MixTransformer(wider), prefix='backbone.')
    assert 'gate=None' not in str(error.value)
