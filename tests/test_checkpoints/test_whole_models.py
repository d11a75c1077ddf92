"""Whole MMDetection 2.x and MMSegmentation 0.x files, their names written out by hand."""

import pytest
import torch
from mmengine.config import ConfigDict
from mmengine.registry import MODELS, DefaultScope
from mmengine.runner import load_checkpoint

import mmlinattn  # noqa: F401
from mmlinattn.checkpoints import check_fits, convert, kind_of, load_state_dict, save_checkpoint

CHANNELS, CLASSES = 8, 3
DIMS = [8, 8, 16, 16]


def fpn(names, levels):
    """Lateral and output convolution of each level of the backbone."""
    shapes = {}
    for i, dim in enumerate(levels):
        shapes.update(names.conv(f'neck.lateral_convs.{i}.conv', CHANNELS, dim))
        shapes.update(names.conv(f'neck.fpn_convs.{i}.conv', CHANNELS, CHANNELS, 3))
    return shapes


def rpn(names):
    return {
        **names.conv('rpn_head.rpn_conv', CHANNELS, CHANNELS, 3),
        **names.conv('rpn_head.rpn_cls', 3, CHANNELS),
        **names.conv('rpn_head.rpn_reg', 12, CHANNELS),
    }


def fcn_mask(names, head):
    shapes = {}
    for i in range(4):
        shapes.update(names.conv(f'{head}.convs.{i}.conv', CHANNELS, CHANNELS, 3))
    shapes.update(names.conv(f'{head}.upsample', CHANNELS, CHANNELS, 2))
    return {**shapes, **names.conv(f'{head}.conv_logits', CLASSES, CHANNELS)}


def mask_rcnn(names):
    head = 'roi_head.bbox_head'
    return {
        **fpn(names, DIMS),
        **rpn(names),
        **names.linear(f'{head}.shared_fcs.0', 16, CHANNELS * 49),
        **names.linear(f'{head}.shared_fcs.1', 16, 16),
        **names.linear(f'{head}.fc_cls', CLASSES + 1, 16),
        **names.linear(f'{head}.fc_reg', 4 * CLASSES, 16),
        **fcn_mask(names, 'roi_head.mask_head'),
    }


def cascade(names):
    shapes = {**fpn(names, DIMS), **rpn(names)}
    for i in range(3):
        head = f'roi_head.bbox_head.{i}'
        for j in range(4):
            shapes.update(names.conv_bn(f'{head}.shared_convs.{j}', CHANNELS, CHANNELS, 3))
        shapes.update(names.linear(f'{head}.shared_fcs.0', 16, CHANNELS * 49))
        shapes.update(names.linear(f'{head}.fc_cls', CLASSES + 1, 16))
        shapes.update(names.linear(f'{head}.fc_reg', 4 * CLASSES, 16))
        shapes.update(fcn_mask(names, f'roi_head.mask_head.{i}'))
    return shapes


def retinanet(names):
    shapes = fpn(names, DIMS[1:])
    shapes.update(names.conv('neck.fpn_convs.3.conv', CHANNELS, DIMS[3], 3))
    shapes.update(names.conv('neck.fpn_convs.4.conv', CHANNELS, CHANNELS, 3))
    for i in range(4):
        shapes.update(names.conv(f'bbox_head.cls_convs.{i}.conv', CHANNELS, CHANNELS, 3))
        shapes.update(names.conv(f'bbox_head.reg_convs.{i}.conv', CHANNELS, CHANNELS, 3))
    shapes.update(names.conv('bbox_head.retina_cls', 9 * CLASSES, CHANNELS, 3))
    return {**shapes, **names.conv('bbox_head.retina_reg', 36, CHANNELS, 3)}


def semantic_fpn(names):
    shapes = {**fpn(names, DIMS), **names.conv('decode_head.conv_seg', CLASSES, CHANNELS)}
    # Every second place of the longer branches is a parameter-free upsampling.
    for branch in ('0.0', '1.0', '2.0', '2.2', '3.0', '3.2', '3.4'):
        shapes.update(names.conv_bn(f'decode_head.scale_heads.{branch}', CHANNELS, CHANNELS, 3))
    return shapes


def upernet(names):
    head = 'decode_head'
    shapes = names.conv(f'{head}.conv_seg', CLASSES, CHANNELS)
    for i in range(4):
        shapes.update(names.conv_bn(f'{head}.psp_modules.{i}.1', CHANNELS, DIMS[3]))
    shapes.update(names.conv_bn(f'{head}.bottleneck', CHANNELS, DIMS[3] + 4 * CHANNELS, 3))
    for i in range(3):
        shapes.update(names.conv_bn(f'{head}.lateral_convs.{i}', CHANNELS, DIMS[i]))
        shapes.update(names.conv_bn(f'{head}.fpn_convs.{i}', CHANNELS, CHANNELS, 3))
    shapes.update(names.conv_bn(f'{head}.fpn_bottleneck', CHANNELS, 4 * CHANNELS, 3))
    shapes.update(names.conv('auxiliary_head.conv_seg', CLASSES, CHANNELS))
    return {**shapes, **names.conv_bn('auxiliary_head.convs.0', CHANNELS, DIMS[2], 3)}


BN = dict(type='BN')
NECK = dict(type='FPN', in_channels=DIMS, out_channels=CHANNELS, num_outs=5)
RPN = dict(
    type='RPNHead',
    in_channels=CHANNELS,
    feat_channels=CHANNELS,
    anchor_generator=dict(
        type='AnchorGenerator', scales=[8], ratios=[0.5, 1.0, 2.0], strides=[4, 8, 16, 32, 64]
    ),
)
BOX = dict(in_channels=CHANNELS, fc_out_channels=16, roi_feat_size=7, num_classes=CLASSES)
MASK = dict(
    type='FCNMaskHead', in_channels=CHANNELS, conv_out_channels=CHANNELS, num_classes=CLASSES
)


def extractor(size):
    align = dict(type='RoIAlign', output_size=size, sampling_ratio=0)
    strides = [4, 8, 16, 32]
    kind = 'SingleRoIExtractor'
    return dict(type=kind, roi_layer=align, out_channels=CHANNELS, featmap_strides=strides)


ROI = dict(bbox_roi_extractor=extractor(7), mask_roi_extractor=extractor(14), mask_head=MASK)
CONV_BOX = dict(
    BOX,
    type='ConvFCBBoxHead',
    num_shared_convs=4,
    num_shared_fcs=1,
    conv_out_channels=CHANNELS,
    norm_cfg=BN,
)
SEG_HEAD = dict(channels=CHANNELS, num_classes=CLASSES, norm_cfg=BN)
RETINA = dict(type='RetinaHead', num_classes=CLASSES, in_channels=CHANNELS, feat_channels=CHANNELS)
MODELS_AND_FILES = {
    'mask-rcnn': (
        mask_rcnn,
        dict(
            type='MaskRCNN',
            neck=NECK,
            rpn_head=RPN,
            roi_head=dict(
                ROI, type='StandardRoIHead', bbox_head=dict(BOX, type='Shared2FCBBoxHead')
            ),
            train_cfg=None,
            test_cfg=dict(rpn=dict(), rcnn=dict()),
        ),
    ),
    'cascade': (
        cascade,
        dict(
            type='CascadeRCNN',
            neck=NECK,
            rpn_head=RPN,
            roi_head=dict(
                ROI,
                type='CascadeRoIHead',
                num_stages=3,
                stage_loss_weights=[1, 0.5, 0.25],
                bbox_head=[CONV_BOX] * 3,
            ),
            train_cfg=None,
            test_cfg=dict(rpn=dict(), rcnn=dict()),
        ),
    ),
    'retinanet': (
        retinanet,
        dict(
            type='RetinaNet',
            neck=dict(NECK, start_level=1, add_extra_convs='on_input'),
            bbox_head=RETINA,
        ),
    ),
    'semantic-fpn': (
        semantic_fpn,
        dict(
            type='EncoderDecoder',
            neck=dict(NECK, num_outs=4),
            decode_head=dict(
                SEG_HEAD,
                type='FPNHead',
                in_channels=[CHANNELS] * 4,
                in_index=[0, 1, 2, 3],
                feature_strides=[4, 8, 16, 32],
            ),
        ),
    ),
    'upernet': (
        upernet,
        dict(
            type='EncoderDecoder',
            decode_head=dict(
                SEG_HEAD,
                type='UPerHead',
                in_channels=DIMS,
                in_index=[0, 1, 2, 3],
                pool_scales=(1, 2, 3, 6),
            ),
            auxiliary_head=dict(
                SEG_HEAD,
                type='FCNHead',
                in_channels=DIMS[2],
                in_index=2,
                num_convs=1,
                concat_input=False,
            ),
        ),
    ),
}


@pytest.mark.parametrize('name', sorted(MODELS_AND_FILES))
def test_whole_model(name, names, tensors, backbone_cfg, tmp_path):
    heads, cfg = MODELS_AND_FILES[name]
    scope = 'mmseg' if cfg['type'] == 'EncoderDecoder' else 'mmdet'
    pytest.importorskip(scope, reason=f'{name} needs {scope}')
    old = tensors({**names.backbone('backbone.'), **heads(names)})
    released = {f'module.{key}': value for key, value in old.items()}
    meta = dict(CLASSES=('a', 'b', 'c'), config='model = dict()')
    torch.save(dict(state_dict=released, meta=meta), tmp_path / 'old.pth')

    state_dict, meta = load_state_dict(tmp_path / 'old.pth')
    converted = convert(state_dict, 'rala')
    save_checkpoint(tmp_path / 'new.pth', converted, meta)
    assert kind_of(converted) == ('segmentor' if scope == 'mmseg' else 'detector')

    with DefaultScope.overwrite_default_scope(scope):
        model = MODELS.build(ConfigDict(cfg, backbone=backbone_cfg))
    report = check_fits(tmp_path / 'new.pth', model)
    assert not report.missing and not report.unexpected and not report.mismatched
    checkpoint = load_checkpoint(model, str(tmp_path / 'new.pth'), strict=True)
    assert checkpoint['meta']['dataset_meta'] == dict(classes=('a', 'b', 'c'))
    loaded = model.state_dict()
    for key in heads(names):
        assert torch.equal(loaded[key], old[key])
