"""Test-time augmentation: which models and configs it takes, and what its samples hold."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mmengine.config import Config, ConfigDict
from mmengine.registry import DefaultScope
from mmseg.datasets import BaseSegDataset

from mmlinattn.apis.augmentation import MERGING, AugmentationHook, augmentation
from mmlinattn.engine.config import load_config
from mmlinattn.engine.preflight.data import DataError, Labels
from mmlinattn.engine.preflight.sample_loading import check_loading

IMAGE = np.random.default_rng(0).integers(0, 255, (64, 96, 3), np.uint8)
IMAGE[:, :48] //= 4  # the mirror image has other predictions


def test_clips_are_not_flipped(root):
    """RandomFlip would exchange the colours of a clip, without an error."""
    cfg = load_config(str(root / 'configs/timesformer/timesformer-axial_8xb8_ssv2-8.py'))
    with pytest.raises(ValueError, match='the test pipeline loads clips; give .* a tta_pipeline'):
        augmentation(cfg)


def test_configs_that_cannot_be_augmented():
    cfg = Config(dict(default_scope='mmengine'))
    with pytest.raises(ValueError, match=r"must be of \['mmdet', .*\], got 'mmengine'"):
        augmentation(cfg)
    joined = dict(type='ConcatDataset', datasets=[dict(pipeline=[]), dict(pipeline=[])])
    cfg = Config(dict(default_scope='mmseg', test_dataloader=dict(dataset=joined)))
    with pytest.raises(ValueError, match=r'joins several data sets \(ConcatDataset\)'):
        augmentation(cfg)


def test_the_model_inside_a_wrapper_is_merged(predictor):
    """SegTTAModel reads attributes that a wrapper for distributed runs does not pass on."""
    of = predictor('seg')
    wrapped = SimpleNamespace(model=torch.nn.DataParallel(of.model))
    with DefaultScope.overwrite_default_scope('mmseg'):
        AugmentationHook(ConfigDict(MERGING['mmseg'])).before_test(wrapped)
        one = of.batch_of(IMAGE)
        views = dict(inputs=[one['inputs']] * 2, data_samples=[one['data_samples']] * 2)
        (sample,) = wrapped.model.test_step(views)
    expected = torch.from_numpy(of(IMAGE).segmentation)
    assert torch.equal(sample.pred_sem_seg.data.squeeze(0), expected)


def test_labels_of_views_are_checked(tmp_path):
    """Maps that a view loads may not lie outside of the data."""
    for folder in ('data', 'elsewhere'):
        (tmp_path / folder).mkdir()
    steps = [
        dict(type='mmcv.LoadImageFromFile'),
        dict(type='TestTimeAug', transforms=[[dict(type='LoadAnnotations')]]),
    ]
    with DefaultScope.overwrite_default_scope('mmseg'):
        dataset = BaseSegDataset(
            data_root=str(tmp_path / 'data'), data_prefix=dict(img_path='', seg_map_path=''),
            metainfo=dict(classes=('a', 'b')), pipeline=steps, lazy_init=True,
        )  # fmt: skip
    image, labels = check_loading(dataset, Labels())
    results = dict(
        img_path=str(tmp_path / 'data/a.png'), img_shape=(8, 8),
        seg_map_path=str(tmp_path / 'elsewhere/a.png'),
        seg_fields=[], reduce_zero_label=False, label_map=None,
    )  # fmt: skip
    with pytest.raises(DataError, match='elsewhere'):
        labels(results)
    assert type(image.load).__name__ == 'LoadImageFromFile'
    assert type(labels.load).__name__ == 'LoadAnnotations'
