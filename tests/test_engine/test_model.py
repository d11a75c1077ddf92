"""Models of configs, and the names of their classes."""

from functools import partial

import pytest
import torch
from mmengine.config import Config
from mmengine.model import PretrainedInit

from mmlinattn.cli import predict
from mmlinattn.cli.arguments import prediction
from mmlinattn.cli.commands import COMMANDS
from mmlinattn.engine import build_model
from mmlinattn.engine.model import check_device, class_names, initial_model, load_model


def test_config_without_model():
    with pytest.raises(ValueError, match='no model'):
        build_model(Config(dict(default_scope='mmdet')))


@pytest.mark.parametrize('kind', ['Pretrained', PretrainedInit])
def test_an_initial_model_reads_no_weights(kind):
    pytest.importorskip('mmseg', reason='the config is one of MMSegmentation')
    init = dict(type='Constant', layer='Conv2d', val=0.25)
    weights = dict(type=kind, checkpoint='nowhere.pth')
    backbone = dict(
        type='ResNet', depth=18, num_stages=1, strides=(1,), dilations=(1,), out_indices=(0,),
        init_cfg=[init, weights],
    )  # fmt: skip
    head = dict(type='FCNHead', in_channels=64, channels=8, num_classes=2, norm_cfg=dict(type='BN'))
    model = dict(type='EncoderDecoder', pretrained='nowhere.pth', backbone=backbone)
    cfg = Config(dict(default_scope='mmseg', model=dict(model, decode_head=head)))
    cfg.model.decode_head.init_cfg = weights
    built = initial_model(cfg)
    # What initialises without a file still does.
    assert built.backbone.conv1.weight.unique().tolist() == [0.25]
    assert cfg.model.pretrained == 'nowhere.pth' and cfg.model.decode_head.init_cfg == weights


def test_class_names(root):
    pytest.importorskip('mmdet', reason='the config is one of MMDetection')
    coco = Config.fromfile(root / 'configs/smca/smca_r50_8xb2-50e_coco.py')
    assert class_names(coco, {}, 80)[17] == 'horse'
    shapes = Config.fromfile(root / 'configs/smca/smca_nano_shapes.py')
    assert class_names(shapes, {}, 5)[0] == class_names(shapes, {}, 0)[0] == 'circle'
    saved = dict(dataset_meta=dict(classes=tuple('abcde')))
    assert class_names(shapes, saved, 5) == tuple('abcde')
    assert class_names(shapes, saved, 2) == ['class 0', 'class 1']
    assert class_names(shapes, dict(dataset_meta=dict(classes='ab')), 2) == ['class 0', 'class 1']


@pytest.mark.parametrize('count, has', [(0, 'has none'), (2, 'has 2 of them, counted from cuda:0')])
def test_a_gpu_that_is_not_there(monkeypatch, count, has):
    monkeypatch.setattr(torch.cuda, 'device_count', lambda: count)
    message = f"device is 'cuda:2', but torch finds no such GPU: this machine {has} "
    for build in (partial(load_model, None, 'weights.pth'), partial(initial_model, None)):
        with pytest.raises(ValueError, match=message):
            build(device='cuda:2')
    there = f'cuda:{count - 1}' if count else 'cpu'
    assert check_device(there) == there


@pytest.mark.parametrize('found', ['cuda', 'cpu'])
def test_the_device_of_commands_is_that_of_trainings(monkeypatch, tmp_path, found):
    """predict ran on the CPU beside an idle GPU."""
    monkeypatch.setattr('mmlinattn.engine.model.get_device', lambda: found)
    monkeypatch.setattr(predict, 'load', lambda *args: pytest.fail(args[2]))
    monkeypatch.setattr(predict, 'files_to_predict', lambda _: {})
    out = f'--out={tmp_path}'
    with pytest.raises(pytest.fail.Exception, match=f'^{found}$'):
        predict.main(prediction.predict(['ravlt-nano_shapes', 'w.pth', 'a.jpg', out]))
    for name in ('app', 'analyze rank', 'analyze throughput'):
        words = [] if name == 'app' else ['c', '--shape', '64', '64']
        assert COMMANDS[name](words).device is None
