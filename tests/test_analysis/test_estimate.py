"""Time and memory estimated: sums by hand on a device of round numbers, and the command."""

import math
import re
from dataclasses import fields, replace

import pytest
from mmengine.config import Config

from mmlinattn import __main__ as program
from mmlinattn.analysis.devices import DEVICES, Device
from mmlinattn.analysis.operators import training_step
from mmlinattn.analysis.training_estimate import (
    BUCKET,
    Efficiency,
    estimate_training,
    image_shape,
    known_images,
)
from mmlinattn.engine import build_model
from mmlinattn.engine.config import load_config

FULL = Efficiency(compute=1, mixed=1, bandwidth=1, link=1, launch=0)
ROUND = Device(
    dict(fp32=1e12, bf16=4e12), bandwidth=1e11, memory=1e10, link=1e9, network=1e7, source=''
)
SHAPE, BATCH = (64, 96), 2


@pytest.fixture
def cfg():
    small = dict(embed_dims=(8, 16, 16, 16), depths=(1, 1, 1, 1), num_heads=(1, 1, 1, 1))
    return Config(
        dict(
            model=dict(type='RAVLT', arch=small),
            optim_wrapper=dict(optimizer=dict(type='AdamW', lr=1e-3)),
            train_dataloader=dict(batch_size=BATCH, dataset=dict(type='ImageNet')),
            train_cfg=dict(max_epochs=3),
        )
    )


def found(cfg, processes=1, device=ROUND, efficiency=FULL, **options):
    return estimate_training(cfg, device, processes, shape=SHAPE, efficiency=efficiency, **options)


def parameters(cfg):
    return sum(p.numel() for p in build_model(cfg).parameters())


def test_a_step_of_one_process_by_hand(cfg):
    step = training_step(build_model(cfg), SHAPE, BATCH)
    one = found(cfg)
    slowest = sum(max(2 * o.products / 1e12, o.nbytes / 1e11) for o in step.operators)
    update = 7 * 4 * parameters(cfg) / 1e11
    assert one.step == pytest.approx(slowest + update)
    assert one.compute > 0 and one.bandwidth > 0 and one.launch == one.exchange == 0
    assert one.memory['activations'] == step.saved and one.products == step.products
    assert one.memory['backward pass'] == step.peak - step.saved > 0
    assert one.memory['optimizer state'] >= 2 * one.memory['parameters']
    assert one.steps == 3 * math.ceil(1_281_167 / BATCH)
    assert one.hours == pytest.approx(one.steps * one.step / 3600)


def test_each_share_and_peak_has_its_effect(cfg):
    one = found(cfg)
    launches = sum(o.nbytes > 0 for o in training_step(build_model(cfg), SHAPE, BATCH).operators)
    slow = found(cfg, efficiency=replace(FULL, launch=1.0))
    assert slow.launch == launches and slow.compute == slow.bandwidth == 0
    assert 'launches' in slow.limit
    half = found(cfg, efficiency=replace(FULL, compute=0.5, bandwidth=0.5))
    assert half.step == pytest.approx(2 * one.step)
    assert found(cfg, precision='bf16').compute < one.compute
    large = found(cfg, device=replace(ROUND, memory=1.0001e9))
    assert not large.fits and large.limit.startswith('memory') and one.fits


def test_rings_of_gradients_by_hand(cfg):
    gradients = 4 * parameters(cfg)
    assert gradients < BUCKET  # one bucket, which nothing hides
    four = found(cfg, 4)
    assert four.exchange == four.exposed == pytest.approx(2 * 3 / 4 * gradients / 1e9)
    assert four.memory['buckets of gradients'] == gradients
    # Four links of a machine, 1e7 bytes/s each, are slower than the link inside.
    two_machines = found(cfg, 8, machines=2)
    assert two_machines.exchange == pytest.approx(2 * 7 / 8 * gradients / 4e7)
    assert two_machines.steps == 3 * math.ceil(1_281_167 / (8 * BATCH))


def test_only_the_last_bucket_shows_where_the_rest_is_hidden(cfg):
    cfg.model.arch.embed_dims = (8, 16, 16, 1024)
    slow = replace(ROUND, bandwidth=1e6)  # computes for long
    one, eight = found(cfg, 1, slow), found(cfg, 8, slow)
    gradients = 4 * parameters(cfg)
    assert gradients > BUCKET
    assert eight.exposed == pytest.approx(eight.exchange * BUCKET / gradients)
    assert eight.step == pytest.approx(one.step + eight.exposed)
    waits = found(cfg, 8, replace(slow, overlaps=False))
    assert waits.exposed == waits.exchange == eight.exchange


def test_fsdp2_keeps_less_and_sends_more(cfg):
    ddp, sharded = found(cfg, 4), found(cfg, 4, shard=['RAVLTBlock'])
    assert sharded.memory['parameters'] < ddp.memory['parameters'] / 3
    assert 'buckets of gradients' not in sharded.memory and sharded.memory['gathered'] > 0
    assert ddp.exchange < sharded.exchange < 1.6 * ddp.exchange  # three ways for two
    with pytest.raises(ValueError, match="'NoBlock'"):
        found(cfg, 4, shard=['NoBlock'])


@pytest.mark.parametrize(
    'name, shape',
    [
        ('vit/deit-b_8xb128_in1k.py', (224, 224)),
        ('ripple/deit-t_8xb64_cifar100.py', None),
        ('ravlt/mask-rcnn_ravlt-t_fpn_1x_coco.py', (800, 1088)),
        ('ravlt/upernet_ravlt-t_8xb2-160k_ade20k-512x512.py', (512, 512)),
        ('rwgka/segformer_mit-b0-rwgka_8xb1-160k_cityscapes-512x1024.py', (512, 1024)),
    ],
)
def test_sizes_of_pipelines(root, name, shape):
    cfg = load_config(str(root / 'configs' / name))
    size = image_shape(cfg)
    assert size == shape or (shape is None and len(set(size)) == 1)


@pytest.mark.parametrize(
    'options, message',
    [
        (dict(processes=0), 'processes must be positive, got 0'),
        (dict(processes=6, machines=4), '6 processes do not spread evenly over 4 machines'),
        (dict(precision='fp8'), "precision 'fp8': the device has fp32, bf16"),
        (dict(batch=0), 'batch must be a positive number of images a process, got 0'),
        (dict(images=0), 'images must be positive, got 0'),
        (dict(device=replace(ROUND, network=None), processes=16), 'no network between machines'),
    ],
)
def test_refuses(cfg, options, message):
    with pytest.raises(ValueError, match=message):
        found(cfg, **options)


def test_refuses_what_the_config_does_not_say(cfg):
    cfg.train_dataloader.dataset.type = 'Mine'
    assert found(cfg).steps is None and found(cfg).hours is None
    assert found(cfg, images=7).steps == 3 * 4
    with pytest.raises(ValueError, match='shape: the pipeline'):
        estimate_training(cfg, ROUND, 1)
    for field in fields(Efficiency):
        with pytest.raises(ValueError, match=f'{field.name} must'):
            Efficiency(**{field.name: -0.1})


COCO = dict(type='CocoDataset', data_root='data/coco/', ann_file='a/instances_train2017.json')


@pytest.mark.parametrize(
    'dataset, number',
    [
        (COCO, 117_266),
        (dict(COCO, type='mmdet.CocoDataset'), 117_266),
        (dict(COCO, ann_file='annotations/train.json'), None),
        (dict(COCO, metainfo=dict(classes=('cat',))), None),
        (dict(COCO, indices=100), None),
        (dict(type='RepeatDataset', times=3, dataset=COCO), 3 * 117_266),
        (dict(type='MultiImageMixDataset', dataset=COCO), 117_266),
        (dict(type='ClassBalancedDataset', dataset=COCO), None),
        (dict(type='ConcatDataset', datasets=[COCO, dict(type='CIFAR10')]), 167_266),
        (dict(type='ConcatDataset', datasets=[COCO, dict(type='Mine')]), None),
        (dict(type='ImageNet', data_root='data/imagenet', split='train'), 1_281_167),
        (dict(type='ImageNet', split='val'), None),
    ],
)
def test_images_are_known_of_known_data_only(dataset, number):
    assert (known_images(dataset) or (None,))[0] == number


def test_the_number_that_was_assumed(cfg):
    cfg.train_dataloader.dataset = dict(type='RepeatDataset', times=3, dataset=COCO)
    one, given = found(cfg), found(cfg, images=7)
    assert one.steps == 3 * math.ceil(3 * 117_266 / BATCH)
    assert one.assumed == '351798 images an epoch (3 x COCO train2017, images with a box)'
    assert given.steps == 3 * math.ceil(7 / BATCH) and given.assumed == ''


def test_the_number_of_own_data_is_asked_for(root, capsys):
    shape = ['--shape', '64', '64']
    for name, text in [
        ('quickstart/mask-rcnn_ravlt-nano_shapes.py', 'unknown: --images'),
        ('ripple/deit-t_8xb64_cifar100.py', 'Assumed: 50000 images an epoch (CIFAR-100 train)'),
    ]:
        program.main(['estimate', str(root / 'configs' / name), *shape])
        out = capsys.readouterr().out
        assert text in ' '.join(out.split())
        assert ('Assumed' in out) == ('Assumed' in text)


def test_devices_are_whole():
    for name in ('bandwidth', 'network'):
        with pytest.raises(ValueError, match=f'{name} must be positive, got 0'):
            replace(ROUND, **{name: 0})
    for name, device in DEVICES.items():
        assert device.source and device.flops['fp32'] > 1e13, name
        assert 1e11 < device.bandwidth < 1e13 and 1e10 < device.memory < 1e12, name


def activations(out):
    return float(re.search(r'activations\W+([0-9.]+) GiB', out)[1])


def test_command(root, capsys):
    config = root / 'configs/quickstart/ravlt-nano_shapes.py'
    command = [
        'estimate',
        str(config),
        '--gpu',
        'h100',
        '--gpus',
        '16',
        '--shape',
        '64',
        '96',
        '--images',
        '1000',
    ]
    program.main([*command, '--strategy', 'fsdp2', '--shard', 'RAVLTBlock'])
    out = capsys.readouterr().out
    assert '16 x h100' in out and 'gathered' in out and 'limited by' in out and 'fits' in out
    assert 'GPU hours' in out
    for option in (
        ['--checkpointing', 'RAVLTBlock'],
        ['--cfg-options', 'strategy.checkpointing=[RAVLTBlock]'],
    ):
        program.main([*command, *option])
        again = capsys.readouterr().out
        assert activations(again) < activations(out) / 2
    with pytest.raises(SystemExit):
        program.main([*command, '--precision', 'int8'])
    error = capsys.readouterr().err
    assert "ValueError: precision 'int8': the device has fp32, tf32" in error
