"""What is wrong is said before training starts, with the name and the value."""

import os

import pytest
import torch
from mmengine.config import Config

from mmlinattn.checkpoints import CheckpointError
from mmlinattn.engine import build_model
from mmlinattn.engine.config import load_config
from mmlinattn.engine.preflight.data import DataError
from mmlinattn.engine.training_setup import set_resume, set_up_training

from .conftest import CONFIGS


@pytest.fixture
def train(quick, tmp_path):
    def call(*extra, task='seg', arguments=()):
        quick('train', task, '--work-dir', tmp_path / 'work', *arguments, cfg=extra)

    yield call
    assert not list(tmp_path.glob('work/*.pth')), 'training had started'


def test_work_dir_that_is_not_utf_8(root, run, tmp_path):
    work_dir = os.fsdecode(bytes(tmp_path) + b'/caf\xe9')
    with pytest.raises(ValueError, match=r"caf\\udce9' is not UTF-8"):
        run('train', root / CONFIGS['cls'], '--work-dir', work_dir)


def test_a_checkpoint_in_the_place_of_the_config(run, tmp_path):
    checkpoint = tmp_path / 'best.pth'
    checkpoint.touch()
    with pytest.raises(ValueError, match=r'best\.pth is no config .*before the checkpoint'):
        run('test', checkpoint, 'any.py')


@pytest.mark.parametrize(
    'config, hint',
    [
        (CONFIGS['seg'], 'mmlinattn shapes nowhere/shapes'),
        ('configs/ravlt/semantic-fpn_ravlt-nano_camvid.py', 'docs/datasets.md#camvid'),
        ('configs/ravlt/mask-rcnn_ravlt-t_fpn_1x_coco.py', 'docs/datasets.md#public-sets'),
        ('configs/ripple/deit-t_8xb64_cifar100.py', 'configs/ripple/README.md#data'),
    ],
)
def test_missing_data_names_the_path_and_the_way_to_get_it(root, run, tmp_path, config, hint):
    data_root = Config.fromfile(root / config).train_dataloader.dataset.data_root
    moved = data_root.replace('data/', 'nowhere/', 1)
    with pytest.raises(FileNotFoundError, match=f'{moved}.*{hint}'):
        run('train', root / config, '--work-dir', tmp_path,
            '--cfg-options', f'train_dataloader.dataset.data_root={moved}')  # fmt: skip


def test_a_value_that_a_metric_reads_after_the_last_image(
    train, root, run, options, state, tmp_path, error_of
):
    with pytest.raises(ValueError, match=r"iou_metrics='foo'\) cannot score: metrics"):
        train('val_evaluator.iou_metrics=foo')
    weights = saved(tmp_path / 'any.ckpt', state)
    error = error_of(
        run, 'test', root / CONFIGS['seg'], weights, '--work-dir', tmp_path / 'test',
        '--cfg-options', *options('seg'), 'test_evaluator.iou_metrics=foo', debug=False,
    )  # fmt: skip
    assert 'test_evaluator' in error and 'cannot score' in error


def test_missing_annotation_file(train):
    with pytest.raises(FileNotFoundError, match='instances_nowhere.json'):
        train('train_dataloader.dataset.ann_file=annotations/instances_nowhere.json', task='det')


@pytest.mark.parametrize(
    'option, message',
    [
        ('trian_cfg.max_iters=3', "no 'trian_cfg'; did you mean train_cfg"),
        ('modle.backbone.cpe=False', "no 'modle'; did you mean model"),
    ],
)
def test_option_that_nothing_reads(train, option, message):
    with pytest.raises(ValueError, match=message):
        train(option)


@pytest.mark.parametrize(
    'option, error, message',
    [
        ('model.backbone.windows=7', TypeError, 'windows'),
        ('model.backbone.arch.dims=7', ValueError, "unknown keys .*'dims'"),
        ("model.backbone.attn_cfg=['RALA','RALA','RALA','lin']", KeyError, "'lin' is not reg"),
        ('model.backbone.arch.num_heads=(1,2,4,3)', ValueError, 'embed_dims=256 .*num_heads=3'),
        ('model.decode_head=dict(_delete_=True)', ValueError, 'model.decode_head .* has no type$'),
        ('model.decode_head.in_channels=[16,32]', ValueError, 'one number of channels for each'),
        ('optim_wrapper=None', ValueError, 'config .*py has no optim_wrapper: set '),
    ],
)
def test_unknown_or_unfit_options_and_missing_ones(train, option, error, message):
    with pytest.raises(error, match=message):
        train(option)


@pytest.mark.parametrize(
    'good, bad, message',
    [
        (dict(type='LoadImageFromFile', decode_backend='numpy'), dict(decode_backend='pickle'),
         r"pipeline\[0\]\.decode_backend of the config is 'pickle', which runs code"),
        (dict(type='OpenImagesDataset'), dict(type='mmdet.OpenImagesChallengeDataset'),
         r'pipeline\[0\]\.type of the config is OpenImagesChallengeDataset, which runs code'),
    ],
)  # fmt: skip
def test_what_would_unpickle(good, bad, message, tmp_path):
    config = tmp_path / 'config.py'
    text = 'train_dataloader = dict(dataset=dict(pipeline=[{}]))'
    config.write_text(text.format(good))
    load_config(str(config))
    config.write_text(text.format({**good, **bad}))
    with pytest.raises(ValueError, match=rf'train_dataloader\.dataset\.{message}'):
        load_config(str(config))


def saved(path, state_dict):
    torch.save(dict(state_dict=state_dict, meta={}), path)
    return path


@pytest.fixture
def state(root):
    model = build_model(load_config(str(root / CONFIGS['seg'])))
    return {name: torch.zeros_like(t, device='cpu') for name, t in model.state_dict().items()}


def test_truncated_checkpoint(train, state, tmp_path):
    path = saved(tmp_path / 'cut.pth', state)
    path.write_bytes(path.read_bytes()[:20000])
    with pytest.raises(CheckpointError, match='cut.pth is incomplete'):
        train(f'load_from={path}')
    with pytest.raises(CheckpointError, match='cut.pth is incomplete'):
        train(arguments=('--resume', path))


def test_checkpoint_of_another_size(train, quick, state, tmp_path):
    state['backbone.stages.2.1.attn.proj.weight'] = torch.zeros(7, 128)
    path = saved(tmp_path / 'other.pth', state)
    wrong = r'backbone.stages.2.1.attn.proj.weight is \(7, 128\) in the file and \(128, 128\)'
    with pytest.raises(CheckpointError, match=wrong):
        train(f'load_from={path}')
    with pytest.raises(CheckpointError, match=wrong.replace('backbone.', '', 1)):
        train(
            "model.backbone.init_cfg=dict(_delete_=True, type='Pretrained', "
            f"checkpoint='{path}', prefix='backbone.')"
        )
    with pytest.raises(CheckpointError, match=wrong):
        quick('test', 'seg', path)


def test_heads_may_differ_in_fine_tuning_but_not_in_a_test(quick, state, tmp_path):
    state['decode_head.conv_seg.weight'] = torch.zeros(19, 64, 1, 1)
    path = saved(tmp_path / 'other_classes.pth', state)
    quick('train', 'seg', cfg=[f'load_from={path}'])
    log = next(tmp_path.glob('*/*.log')).read_text()
    assert 'decode_head.conv_seg.weight is (19, 64, 1, 1) in the file' in log
    assert 'load_from: ' in log
    with pytest.raises(CheckpointError, match='conv_seg'):
        quick('test', 'seg', path)


def test_pretrained_weights_are_missed_before_data_is_read(run, root, tmp_path, monkeypatch):
    name = 'segformer_mit-b0-rwgka_8xb1-160k_cityscapes-1024x1024'
    for kind in ('leftImg8bit', 'gtFine'):
        for split in ('train', 'val'):
            (tmp_path / 'cityscapes' / kind / split).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    roots = [
        f'{split}_dataloader.dataset.data_root={tmp_path}/cityscapes'
        for split in ('train', 'val', 'test')
    ]
    message = (
        r'mit-b0-rwgka_in1k\.pth.*configs/rwgka/mit-b0-rwgka_8xb128_in1k\.py.*mmlinattn convert.*'
        r'--cfg-options model\.backbone\.init_cfg\.checkpoint=FILE.*init_cfg=None'
    )
    with pytest.raises(FileNotFoundError, match=message):
        run('train', root / f'configs/rwgka/{name}.py', '--work-dir', tmp_path / 'work',
            '--cfg-options', *roots)  # fmt: skip


def test_out_must_be_a_pickle(run, error_of):
    error = error_of(run, 'test', 'config.py', 'checkpoint.pth', '--out', 'predictions.json')
    assert "--out must end with .pkl or .pickle, got 'predictions.json'" in error


def test_a_palette_that_is_too_short(train):
    with pytest.raises(DataError, match='metainfo.palette: has 1 colours for 5 classes'):
        train('train_dataloader.dataset.metainfo.palette=[[0,0,0]]', task='det')


def test_auto_scale_lr_without_a_base(train):
    with pytest.raises(ValueError, match='add auto_scale_lr = dict.base_batch_size'):
        train(arguments=('--auto-scale-lr',))


def test_scores_are_of_whole_models_only(quick, state, tmp_path):
    half = {name: value for name, value in state.items() if name.startswith('backbone.')}
    path = tmp_path / 'backbone.pth'
    bare = {name.removeprefix('backbone.'): value for name, value in half.items()}
    for weights, message in (
        (half, 'not of this whole model .*; give a checkpoint of the whole model'),
        (bare, 'A test .* needs a checkpoint of the whole model; a training starts from'),
    ):
        with pytest.raises(CheckpointError, match=message):
            quick('test', 'seg', saved(path, weights))


def test_a_checkpoint_with_the_classes_in_another_order(root, quick, state, tmp_path):
    classes = Config.fromfile(root / CONFIGS['seg']).test_dataloader.dataset.metainfo.classes
    path, meta = tmp_path / 'other.pth', dict(dataset_meta=dict(classes=classes[::-1]))
    torch.save(dict(state_dict=state, meta=meta), path)
    wrong = f"test_dataloader: label 0 is '{classes[-1]}', but '{classes[0]}' here"
    with pytest.raises(DataError, match=wrong):
        quick('test', 'seg', path)
    with pytest.raises(DataError, match=wrong.replace('test_', 'train_')):
        quick('train', 'seg', '--resume', path)


def test_resume_without_a_checkpoint_keeps_load_from(tmp_path):
    cfg = Config(dict(work_dir=str(tmp_path), load_from='weights.pth', resume=False))
    set_resume(cfg, 'auto')
    assert (cfg.load_from, cfg.resume) == ('weights.pth', False)
    set_resume(cfg, 'other.pth')
    assert (cfg.load_from, cfg.resume) == ('other.pth', True)


def test_an_epoch_without_a_whole_batch(quick):
    """The ImageNet configs drop the last, smaller batch, as their releases."""
    with pytest.raises(DataError, match=r'an epoch has \d+ images .* batch_size=500.*drop_last'):
        quick('train', 'cls', batch=500, cfg=['train_dataloader.drop_last=True'])


def test_an_epoch_that_never_ends(quick):
    sampler = "train_dataloader.sampler={'_delete_': True, 'type': 'InfiniteSampler'}"
    with pytest.raises(DataError, match='sampler is InfiniteSampler, which never ends'):
        quick('train', 'cls', cfg=[sampler])


@pytest.mark.parametrize('option', [dict(runner_type='FlexibleRunner'), dict(strategy=dict())])
def test_another_runner_than_that_of_mmengine(option):
    with pytest.raises(ValueError, match="mmlinattn train uses MMEngine's Runner"):
        set_up_training(Config(option), resume=None, amp=False)
