"""Test-time augmentation: which models and configs it takes, and what its samples hold."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mmengine.config import Config, ConfigDict
from mmengine.registry import MODELS, DefaultScope
from mmseg.datasets import BaseSegDataset
from mmseg.structures import SegDataSample

from mmlinattn.apis.augmentation import (
    MERGING,
    AugmentationHook,
    augmentation,
    check_augmentable,
    merging_model,
)
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


def test_a_segmentor_with_one_output():
    """MMSegmentation takes the sigmoid of what its segmentor gives after a sigmoid."""
    with DefaultScope.overwrite_default_scope('mmseg'):
        head = dict(
            type='FCNHead', in_channels=1, in_index=0, channels=4, num_convs=1, num_classes=2,
            out_channels=1, threshold=0.5,
            loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=True),
        )  # fmt: skip
        backbone = dict(type='ResNet', depth=18, base_channels=1, out_indices=(0,))
        test_cfg = ConfigDict(mode='whole')
        model = MODELS.build(
            dict(type='EncoderDecoder', backbone=backbone, decode_head=head, test_cfg=test_cfg)
        ).eval()
        sample = SegDataSample(metainfo=dict(ori_shape=(64, 64), img_shape=(64, 64), img_path=''))
        merging = merging_model(ConfigDict(MERGING['mmseg']), model)
        torch.nn.init.constant_(model.decode_head.conv_seg.bias, -5.0)
        found = model.predict(torch.zeros(1, 3, 64, 64), [sample])
        assert not found[0].pred_sem_seg.data.any()
        merged = merging.merge_preds([found])
    with pytest.raises(ValueError, match='tta: EncoderDecoder has one output'):
        check_augmentable(model)
    assert merged[0].pred_sem_seg.data.all(), 'it is mended: allow it'


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
