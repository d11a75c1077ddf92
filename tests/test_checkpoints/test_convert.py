import math
import sys

import pytest
import torch
from mmengine.config import ConfigDict
from mmengine.registry import MODELS, DefaultScope
from torch import nn

import mmlinattn  # noqa: F401
from mmlinattn.checkpoints import (
    CheckpointError,
    check_fits,
    compare,
    load_checkpoint,
    load_state_dict,
    save_checkpoint,
)
from mmlinattn.checkpoints.converters import convert, kind_of


def test_converting_twice_is_refused(dense):
    with pytest.raises(CheckpointError, match='is converted already: name it in init_cfg'):
        convert(convert(dense, 'rala'), 'rala')


def test_two_names_for_one_tensor(dense):
    dense['backbone.patch_embed.proj.0.bias'] = dense['patch_embed.proj.0.bias']
    with pytest.raises(CheckpointError, match=r'backbone\.stem\.0\.conv\.bias twice'):
        convert(dense, 'rala')


def test_ema_copies_are_left_out_and_reported(dense, capsys):
    before = convert(dense, 'rala')
    assert kind_of(before) == 'backbone'
    converted = convert(dict(dense, ema_backbone_norm_weight=torch.zeros(3)), 'rala')
    assert converted.keys() == before.keys()
    out = capsys.readouterr().out
    assert 'left out 1 copies of the EMA hook' in out and 'left out 4 rotary angles' in out


def test_weights_of_another_network():
    """Names that one rule matches are not reshaped before others are known to be unknown."""
    foreign = {'stages.1.downsample.0.weight': torch.zeros(2, 2), 'foreign.a': torch.ones(2)}
    with pytest.raises(CheckpointError, match='does not know: foreign.a'):
        convert(foreign, 'swin')
    foreign.pop('foreign.a')
    with pytest.raises(CheckpointError, match='another shape than those of --source swin: unflat'):
        convert(foreign, 'swin')
    with pytest.raises(CheckpointError, match='of --source smca: len.. of a 0-d tensor'):
        convert({'class_embed.bias': torch.tensor(0.0)}, 'smca')


def test_weights_that_the_model_lacks_are_logged(tmp_path, monkeypatch):
    path, texts = tmp_path / 'a.pth', []
    monkeypatch.setattr(sys.modules[check_fits.__module__], 'log_warning', texts.append)
    extra = {'gamma': torch.ones(2), 'auxiliary_head.a': torch.ones(2), 'ema_a': torch.ones(2)}
    save_checkpoint(path, dict(nn.Linear(2, 3).state_dict(), **extra), {})
    load_checkpoint(nn.Linear(2, 3), path)
    (text,) = texts
    assert 'a.pth has weights that the model lacks, which are left out: gamma. Give' in text


def test_other_input_channels(tmp_path):
    save_checkpoint(tmp_path / 'a.pth', nn.Conv2d(3, 8, 4).state_dict(), {})
    error = r'The file is for images of 3 channels, the model for 4 \(in_channels\)'
    with pytest.raises(CheckpointError, match=error):
        check_fits(tmp_path / 'a.pth', nn.Conv2d(4, 8, 4))
    for other in (nn.Conv2d(3, 8, 2), nn.Conv2d(4, 9, 4)):
        with pytest.raises(CheckpointError, match='Give the arch'):
            check_fits(tmp_path / 'a.pth', other)
    save_checkpoint(tmp_path / 'a.pth', nn.Conv2d(16, 8, 1).state_dict(), {})
    with pytest.raises(CheckpointError, match='Give the arch'):  # no image has 16 channels
        check_fits(tmp_path / 'a.pth', nn.Conv2d(32, 8, 1))


def test_mmdet_1_is_refused():
    old = {'rpn_head.rpn_cls.bias': torch.zeros(3), 'bbox_head.fc_cls.bias': torch.zeros(81)}
    with pytest.raises(CheckpointError, match=r'MMDetection 1\.x'):
        convert(old, 'rala')


FPN = dict(type='FPN', in_channels=[16, 32, 48, 64], out_channels=8, num_outs=5)
WHOLE = {
    'detector': ('mmdet', dict(
        type='RetinaNet', neck=FPN, bbox_head=dict(type='RetinaHead', num_classes=3, in_channels=8)
    )),
    'segmentor': ('mmseg', dict(
        type='EncoderDecoder',
        decode_head=dict(type='UPerHead', in_channels=[16, 32, 48, 64], in_index=[0, 1, 2, 3],
                         channels=8, num_classes=3, norm_cfg=dict(type='BN')),
    )),
}  # fmt: skip


@pytest.mark.parametrize('kind', WHOLE)
def test_whole_model(kind, dense, backbone_cfg, tmp_path):
    """Files of MMDetection 2.x and MMSegmentation 0.x, whose heads have the names of today."""
    scope, cfg = WHOLE[kind]
    pytest.importorskip(scope, reason=f'a {kind} needs {scope}')
    with DefaultScope.overwrite_default_scope(scope):
        model = MODELS.build(ConfigDict(cfg, backbone=backbone_cfg))
    heads = {k: v + 1 for k, v in model.state_dict().items() if not k.startswith('backbone.')}
    old = {**{f'backbone.{k}': v for k, v in dense.items()}, **heads}
    meta = dict(CLASSES=('a', 'b', 'c'), config='model = dict()')
    state = {f'module.{k}': v for k, v in old.items()}
    torch.save(dict(state_dict=state, meta=meta), tmp_path / 'old.pth')

    state_dict, meta = load_state_dict(tmp_path / 'old.pth')
    converted = convert(state_dict, 'rala')
    assert kind_of(converted) == kind
    save_checkpoint(tmp_path / 'new.pth', converted, meta)
    report = check_fits(tmp_path / 'new.pth', model)
    assert not report.missing and not report.unexpected and not report.mismatched
    meta = load_checkpoint(model, tmp_path / 'new.pth')
    assert meta['dataset_meta'] == dict(classes=('a', 'b', 'c'))
    loaded = model.state_dict()
    assert all(torch.equal(loaded[key], value) for key, value in heads.items())


def test_compare_reports_every_kind():
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    file = {'0.weight': torch.zeros(3, 2), '0.bias': torch.zeros(4), '2.bias': torch.zeros(1)}
    report = compare(model.state_dict(), file)
    assert report.matched == ['0.weight']
    assert report.missing == ['1.weight', '1.bias', '1.running_mean', '1.running_var']
    assert report.unexpected == ['2.bias']
    assert report.mismatched == [('0.bias', (4,), (3,))]
    assert '0.bias is (4,) in the file and (3,) in the model' in str(report)


@pytest.mark.parametrize(
    'names, message',
    [
        (['stages.0.blocks.0.weight'], 'stages.0.blocks has 1 blocks in the file, 2 in the model'),
        ([f'stages.0.blocks.{i}.weight' for i in range(3)], 'has 3 blocks in the file, 2 in'),
        (['stages.0.0.weight', 'stages.0.7.weight'], 'not one key is of ModuleDict; the file has'),
        (['layers.0.1.0.weight', 'layers.1.1.0.weight'], 'not one key is of ModuleDict'),
    ],
)
def test_blocks_of_another_model(tmp_path, names, message):
    blocks = nn.ModuleDict(dict(blocks=nn.ModuleList([nn.Linear(2, 2, False) for _ in range(2)])))
    model = nn.ModuleDict(dict(stages=nn.ModuleList([blocks])))
    torch.save(dict(state_dict=dict.fromkeys(names, torch.ones(2, 2))), tmp_path / 'a.pth')
    with pytest.raises(CheckpointError, match=message):
        check_fits(tmp_path / 'a.pth', model)


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


@pytest.mark.parametrize(
    'of, model, cure',
    [
        (dict(backbone=(2, 3)), dict(whole=(2, 3)), 'not one key is of ModuleDict'),
        (dict(attn=(2, 3), norm=(2, 2)), dict(attn=(2, 4), norm=(2, 2)),
         'the options that the weights were trained with'),
        (dict(backbone=(2, 3)), dict(backbone=(2, 4)), 'Give the arch that the file was trained'),
        (dict(neck=(2, 3), panoptic_head=(3, 81)), dict(neck=(2, 3), panoptic_head=(3, 4)),
         'For other classes name the file in load_from: a training then starts these anew'),
    ],
)  # fmt: skip
def test_the_cure_of_weights_that_do_not_fit(tmp_path, of, model, cure):
    of, model = (
        nn.ModuleDict({name: nn.Linear(*sizes) for name, sizes in each.items()})
        for each in (of, model)
    )
    save_checkpoint(tmp_path / 'a.pth', of.state_dict(), {})
    with pytest.raises(CheckpointError, match=cure):
        check_fits(tmp_path / 'a.pth', model)


PARTS = dict(backbone=nn.Linear(2, 3), head=nn.Linear(3, 4))


@pytest.mark.parametrize(
    'names, prefix, of, cure',
    [
        (['backbone.{}'], None, 'backbone', r"behind 'backbone\.': set init_cfg=.*='backbone\.'\)"),
        (['backbone.{}'], 'backbon.', 'backbone', r"with backbone\. They are behind 'backbone"),
        (['{}'], 'backbone.', 'backbone', 'They have no prefix: leave that of init_cfg out'),
        (['a.{}.c'], 'b.', None, 'begin with a: change the prefix of init_cfg, or leave it out'),
        (['model.backbone.{}', 'model.head.{}'], None, 'backbone', r"prefix='model\.backbone\.'\)"),
        (['net.model.backbone.{}', 'net.model.head.{}'], None, None,
         r'convert .*a\.pth checkpoints/NAME\.pth --prefix net\.model\.$'),
        (['ema_model.module.{}', 'student.{}'], None, 'backbone',
         r"behind 'ema_model\.module\.' or 'student\.': set .*prefix='ema_model\.module\.'\)"),
        (['{}'], None, None, r'backbone\.init_cfg=dict\(\S+, checkpoint=\S+\)$'),
        (['encoder.{}'], None, None, r"model\.backbone\.init_cfg=dict.* prefix='encoder\.'\)$"),
        (['_orig_mod.backbone.{}', '_orig_mod.head.{}'], None, None, "--prefix '' writes them"),
        (['backbone._orig_mod.{}', 'head.{}'], None, None, "--prefix '' writes them"),
    ],
)  # fmt: skip
def test_the_cure_of_a_wrong_prefix(tmp_path, names, prefix, of, cure):
    """Files of Lightning, torch.compile, teachers, bare backbones, and other prefixes."""
    path, model = tmp_path / 'a.pth', nn.ModuleDict(PARTS)
    weights = {
        form.format(name): value
        for form in names
        for name, value in PARTS['head' if 'head' in form else 'backbone'].state_dict().items()
    }
    save_checkpoint(path, weights, {})
    with pytest.raises(CheckpointError, match=cure):
        check_fits(path, model[of] if of else model, prefix)


def test_the_cure_of_a_backbone_for_a_whole_model(tmp_path):
    path, whole = tmp_path / 'a.pth', nn.ModuleDict(PARTS)
    save_checkpoint(path, {'backbone.weight': torch.zeros(3, 2)}, {})
    with pytest.raises(CheckpointError, match='give a checkpoint of the whole model$'):
        load_checkpoint(whole, path)


def test_sections_that_are_not_read(tmp_path):
    torch.save(dict(teacher=PARTS['head'].state_dict(), epoch=3), tmp_path / 'a.pth')
    with pytest.raises(CheckpointError, match='but under teacher: save one of them as state_dict'):
        load_state_dict(tmp_path / 'a.pth')


@pytest.mark.parametrize(
    'name, value, fits',
    [
        ('0.weight', math.nan, False), ('0.weight', -math.inf, False),
        ('1.running_var', math.inf, False), ('mask', -math.inf, True), ('mask', math.nan, False),
        ('other', math.nan, True),
    ],
)  # fmt: skip
def test_weights_that_are_nan_or_infinite(tmp_path, name, value, fits):
    """A mask may hold infinities, and what is not loaded may be anything."""
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    model.register_buffer('mask', torch.zeros(1))
    weights = dict(model.state_dict(), other=torch.zeros(1))
    weights[name] = torch.full_like(weights[name], value)
    save_checkpoint(tmp_path / 'a.pth', weights, {})
    if fits:
        assert check_fits(tmp_path / 'a.pth', model).matched
        return
    with pytest.raises(CheckpointError, match=f'1 weights that are NaN or infinite: {name}'):
        check_fits(tmp_path / 'a.pth', model)


def test_check_fits_allows_what_a_load_hook_resizes(tmp_path):
    model = nn.Linear(2, 3)

    def resize(state_dict, prefix, *args):
        state_dict[f'{prefix}weight'] = state_dict[f'{prefix}weight'][:3]

    model._register_load_state_dict_pre_hook(resize)
    save_checkpoint(tmp_path / 'a.pth', {'weight': torch.zeros(9, 2)}, {})
    assert check_fits(tmp_path / 'a.pth', model).matched == ['weight']
