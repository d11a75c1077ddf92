"""Models of configs, and the names of their classes."""

from functools import partial

import pytest
import torch
from mmengine.config import Config

from mmlinattn.engine import build_model
from mmlinattn.engine.model import check_device, class_names, initial_model, load_model


def test_config_without_model():
    with pytest.raises(ValueError, match='no model'):
        build_model(Config(dict(default_scope='mmdet')))


def test_unknown_option():
    cfg = Config(dict(model=dict(type='RAVLT', arch='tiny', no_such_option=1)))
    with pytest.raises(TypeError, match='no_such_option'):
        build_model(cfg)


def test_class_names(root):
    pytest.importorskip('mmdet')
    coco = Config.fromfile(root / 'configs/smca/smca_r50_8xb2-50e_coco.py')
    assert class_names(coco, {}, 80)[17] == 'horse'
    shapes = Config.fromfile(root / 'configs/smca/smca_nano_shapes.py')
    assert class_names(shapes, {}, 5)[0] == 'circle'
    saved = dict(dataset_meta=dict(classes=tuple('abcde')))
    assert class_names(shapes, saved, 5) == tuple('abcde')
    assert class_names(shapes, saved, 2) == ['class 0', 'class 1']


@pytest.mark.parametrize('count, has', [(0, 'has none'), (2, 'has 2 of them, counted from cuda:0')])
def test_a_gpu_that_is_not_there(monkeypatch, count, has):
    monkeypatch.setattr(torch.cuda, 'device_count', lambda: count)
    message = f"device is 'cuda:2', but torch finds no such GPU: this machine {has} "
    for build in (partial(load_model, None, 'weights.pth'), partial(initial_model, None)):
        with pytest.raises(ValueError, match=message):
            build(device='cuda:2')
    check_device(f'cuda:{count - 1}' if count else 'cpu')
