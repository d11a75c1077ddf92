# RTMDet small enough for two CPU cores and 128x128 images.
_base_ = './ravlt-nano.py'

act_cfg = dict(type='SiLU', inplace=True)
model = dict(
    type='RTMDet',
    data_preprocessor=dict(
        type='DetDataPreprocessor',
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        pad_size_divisor=32,
    ),
    backbone=dict(_base_.ravlt_nano, out_indices=(1, 2, 3)),
    neck=dict(
        type='CSPNeXtPAFPN',
        in_channels=[64, 128, 256],
        out_channels=64,
        num_csp_blocks=1,
        expand_ratio=0.5,
        act_cfg=act_cfg,
    ),
    bbox_head=dict(
        type='RTMDetSepBNHead',
        num_classes=5,
        in_channels=64,
        feat_channels=64,
        stacked_convs=2,
        share_conv=True,
        pred_kernel_size=1,
        with_objectness=False,
        act_cfg=act_cfg,
        anchor_generator=dict(type='MlvlPointGenerator', offset=0, strides=[8, 16, 32]),
        bbox_coder=dict(type='DistancePointBBoxCoder'),
        loss_cls=dict(type='QualityFocalLoss', use_sigmoid=True, beta=2.0, loss_weight=1.0),
        loss_bbox=dict(type='GIoULoss', loss_weight=2.0),
    ),
    train_cfg=dict(
        assigner=dict(type='DynamicSoftLabelAssigner', topk=13),
        allowed_border=-1,
        pos_weight=-1,
        debug=False,
    ),
    test_cfg=dict(
        nms_pre=300,
        min_bbox_size=0,
        score_thr=0.05,
        nms=dict(type='nms', iou_threshold=0.6),
        max_per_img=20,
        mask_thr_binary=0.5,
    ),
)
