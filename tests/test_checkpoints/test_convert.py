import pytest
import torch
from mmengine.registry import MODELS
from torch import nn

import mmlinattn  # noqa: F401
from mmlinattn.checkpoints import (
    CheckpointError,
    check_fits,
    compare,
    convert,
    kind_of,
    load_checkpoint,
    save_checkpoint,
)


def test_names_and_values(dense):
    converted = convert(dense, 'rala')
    pairs = {
        'patch_embed.proj.9.weight': 'backbone.stem.3.conv.weight',
        'patch_embed.proj.10.running_var': 'backbone.stem.3.bn.running_var',
        'layers.2.blocks.1.pos.weight': 'backbone.stages.2.1.cpe.weight',
        'layers.0.blocks.0.attn.lepe.weight': 'backbone.stages.0.0.attn.lepe.weight',
        'layers.1.blocks.0.norm2.norm.bias': 'backbone.stages.1.0.norm2.bias',
        'layers.1.downsample.reduction.weight': 'backbone.downsamples.1.conv.weight',
        'layers.1.downsample.norm.num_batches_tracked': (
            'backbone.downsamples.1.bn.num_batches_tracked'
        ),
        'extra_norms.3.norm.weight': 'backbone.out_norms.3.weight',
    }
    for theirs, ours in pairs.items():
        assert torch.equal(converted[ours], dense[theirs])
    fused = 'layers.2.blocks.1.attn.qkvo.weight'
    in_proj = converted['backbone.stages.2.1.attn.in_proj.weight']
    assert torch.equal(in_proj, dense[fused][:, :, 0, 0])
    gamma = converted['backbone.stages.3.0.gamma2']
    assert torch.equal(gamma, dense['layers.3.blocks.0.gamma_2'][0, :, 0, 0])


def test_dense_backbone_loads_strictly(dense, backbone_cfg):
    converted = convert(dense, 'rala')
    model = MODELS.build(backbone_cfg)
    model.load_state_dict({k[len('backbone.') :]: v for k, v in converted.items()}, strict=True)
    assert kind_of(converted) == 'backbone'
    constants = [name for name in dense if name.endswith('RoPE.angle')]
    assert len(converted) == len(dense) - len(constants) + 1  # the record of its attentions


def test_classifier_names(classifier):
    converted = convert(classifier, 'rala')
    assert kind_of(converted) == 'classifier'
    assert torch.equal(converted['neck.conv.weight'], classifier['proj.weight'])
    assert torch.equal(converted['neck.bn.running_mean'], classifier['norm.running_mean'])
    assert torch.equal(converted['head.fc.weight'], classifier['head.weight'].flatten(1))
    assert torch.equal(converted['head.fc.bias'], classifier['head.bias'])


def test_input_is_not_modified(dense):
    before = {name: (id(value), value.shape) for name, value in dense.items()}
    convert(dense, 'rala')
    assert {name: (id(value), value.shape) for name, value in dense.items()} == before


def test_unknown_source(dense):
    with pytest.raises(ValueError, match=r"unknown source 'rola', known are .*'rala'"):
        convert(dense, source='rola')


def test_unknown_keys_are_named(dense):
    dense.update({f'layers.0.blocks.0.mystery{i}': torch.zeros(1) for i in range(7)})
    with pytest.raises(CheckpointError, match=r'mystery0, .*mystery4 and 2 more'):
        convert(dense, 'rala')


def test_converting_twice_is_refused(dense):
    with pytest.raises(CheckpointError, match='is converted already: name it in init_cfg'):
        convert(convert(dense, 'rala'), 'rala')


def test_two_names_for_one_tensor(dense):
    dense['backbone.patch_embed.proj.0.bias'] = dense['patch_embed.proj.0.bias']
    with pytest.raises(CheckpointError, match=r'backbone\.stem\.0\.conv\.bias twice'):
        convert(dense, 'rala')


def test_ema_copies_are_left_out_and_reported(dense, capsys):
    converted = convert(dict(dense, ema_backbone_norm_weight=torch.zeros(3)), 'rala')
    assert not any('ema' in name for name in converted)
    out = capsys.readouterr().out
    assert 'left out 1 copies of the EMA hook' in out and 'left out 4 rotary angles' in out


def test_mmdet_1_is_refused():
    old = {'rpn_head.rpn_cls.bias': torch.zeros(3), 'bbox_head.fc_cls.bias': torch.zeros(81)}
    with pytest.raises(CheckpointError, match=r'MMDetection 1\.x'):
        convert(old, 'rala')


def test_compare_reports_every_kind():
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    file = {'0.weight': torch.zeros(3, 2), '0.bias': torch.zeros(4), '2.bias': torch.zeros(1)}
    report = compare(model.state_dict(), file)
    assert report.matched == ['0.weight']
    assert report.missing == ['1.weight', '1.bias', '1.running_mean', '1.running_var']
    assert report.unexpected == ['2.bias']
    assert report.mismatched == [('0.bias', (4,), (3,))]
    assert '0.bias is (4,) in the file and (3,) in the model' in str(report)


def test_check_fits_whole_and_prefix(dense, backbone_cfg, tmp_path):
    path = tmp_path / 'backbone.pth'
    converted = convert(dense, 'rala')
    del converted['backbone.out_norms.0.weight']
    save_checkpoint(path, converted, {})
    model = MODELS.build(backbone_cfg)
    for prefix in ('backbone', 'backbone.'):
        assert check_fits(path, model, prefix).missing == ['out_norms.0.weight']
    host = nn.ModuleDict(dict(backbone=model))
    assert check_fits(path, host).missing == ['backbone.out_norms.0.weight']


def test_check_fits_names_key_and_shapes(dense, backbone_cfg, tmp_path):
    path = tmp_path / 'backbone.pth'
    save_checkpoint(path, convert(dense, 'rala'), {})
    backbone_cfg['arch'] = dict(backbone_cfg['arch'], mlp_ratios=3.0)
    model = MODELS.build(backbone_cfg)
    message = r'backbone\.pth.*ffn\.fc1\.weight is \(16, 8\) in the file and \(24, 8\)'
    with pytest.raises(CheckpointError, match=message):
        check_fits(path, model, 'backbone.')


def test_check_fits_when_heads_may_differ(tmp_path):
    model = nn.ModuleDict(dict(backbone=nn.Linear(2, 3), head=nn.Linear(3, 5)))
    other = nn.ModuleDict(dict(backbone=nn.Linear(2, 3), head=nn.Linear(3, 7)))
    save_checkpoint(tmp_path / 'a.pth', other.state_dict(), {})
    with pytest.raises(CheckpointError, match=r'head\.weight is \(7, 3\)'):
        check_fits(tmp_path / 'a.pth', model)
    with pytest.raises(CheckpointError, match=r'1 keys.*head\.bias'):
        check_fits(tmp_path / 'a.pth', model, may_differ=('head.w',))
    report = check_fits(tmp_path / 'a.pth', model, may_differ=('head.',))
    assert [name for name, *_ in report.mismatched] == ['head.weight', 'head.bias']


def test_the_cure_of_weights_that_do_not_fit(tmp_path):
    def error(of, module, call=check_fits, **options):
        save_checkpoint(tmp_path / 'a.pth', of.state_dict(), {})
        with pytest.raises(CheckpointError) as found:
            if call is check_fits:
                call(tmp_path / 'a.pth', module, **options)
            else:
                call(module, tmp_path / 'a.pth')
        return str(found.value)

    whole = nn.ModuleDict(dict(backbone=nn.Linear(2, 3)))
    assert error(whole, nn.Linear(2, 3)).endswith(
        "behind 'backbone': init_cfg needs prefix='backbone.'"
    )
    said = error(whole, nn.Linear(2, 3), prefix='backbon.')
    assert "begin with 'backbon.'; theirs begin with backbone: change the prefix" in said
    # No key matches because all shapes differ, even if heads may differ.
    said = error(nn.Linear(3, 4), nn.Linear(2, 3), may_differ=('',))
    assert 'weight is (4, 3) in the file and (3, 2) in the model' in said
    assert said.endswith('Give the arch that the file was trained with')
    attns = [nn.ModuleDict(dict(attn=nn.Linear(2, i), norm=nn.Linear(2, 2))) for i in (3, 4)]
    assert error(*attns).endswith('the options that the weights were trained with')
    both = nn.ModuleDict(dict(backbone=nn.Linear(2, 3), head=nn.Linear(3, 4)))
    said = error(whole, both, load_checkpoint)
    assert (
        '\n' not in said and '2 keys match; 2 missing in the file: head.weight, head.bias' in said
    )
    assert said.endswith('weights of a backbone, which are named in model.backbone.init_cfg')
    said = error(nn.ModuleDict(dict(head=nn.Linear(3, 4))), both, load_checkpoint)
    assert said.endswith('give the config it was trained with')


def test_check_fits_without_a_common_key(dense, tmp_path):
    path = tmp_path / 'backbone.pth'
    save_checkpoint(path, convert(dense, 'rala'), {})
    with pytest.raises(CheckpointError, match='not one key is of Linear'):
        check_fits(path, nn.Linear(2, 3))
    with pytest.raises(CheckpointError, match=r"no keys that begin with 'neck\.'"):
        check_fits(path, nn.Linear(2, 3), prefix='neck')


def test_check_fits_allows_what_a_load_hook_resizes(tmp_path):
    model = nn.Linear(2, 3)

    def resize(state_dict, prefix, *args):
        state_dict[f'{prefix}weight'] = state_dict[f'{prefix}weight'][:3]

    model._register_load_state_dict_pre_hook(resize)
    save_checkpoint(tmp_path / 'a.pth', {'weight': torch.zeros(9, 2)}, {})
    assert check_fits(tmp_path / 'a.pth', model).matched == ['weight']
