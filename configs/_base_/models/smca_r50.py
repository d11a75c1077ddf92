# SMCA on a ResNet-50, single scale, as released.
model = dict(
    type='SMCA',
    num_queries=300,
    data_preprocessor=dict(
        type='DetDataPreprocessor',
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        pad_size_divisor=1,
    ),
    backbone=dict(
        type='ResNet',
        depth=50,
        num_stages=4,
        out_indices=(3,),
        frozen_stages=1,
        norm_cfg=dict(type='BN', requires_grad=False),
        norm_eval=True,
        style='pytorch',
        init_cfg=dict(type='Pretrained', checkpoint='torchvision://resnet50'),
    ),
    neck=dict(
        type='ChannelMapper',
        in_channels=[2048],
        kernel_size=1,
        out_channels=256,
        act_cfg=None,
        norm_cfg=None,
        num_outs=1,
    ),
    encoder=dict(
        num_layers=6,
        layer_cfg=dict(
            attn_cfg=dict(type='SoftmaxAttention', attn_drop=0.1),
            embed_dims=256,
            num_heads=8,
            feedforward_channels=2048,
            dropout=0.1,
        ),
    ),
    decoder=dict(
        num_layers=6,
        stride=32,
        layer_cfg=dict(
            embed_dims=256,
            num_heads=8,
            feedforward_channels=2048,
            dropout=0.1,
            smooth=8.0,
        ),
    ),
    positional_encoding=dict(num_feats=128, normalize=True),
    bbox_head=dict(
        type='SMCAHead',
        num_classes=80,
        embed_dims=256,
        sync_cls_avg_factor=True,
        loss_cls=dict(type='FocalLoss', use_sigmoid=True, gamma=2.0, alpha=0.25, loss_weight=2.0),
        loss_bbox=dict(type='L1Loss', loss_weight=5.0),
        loss_iou=dict(type='GIoULoss', loss_weight=2.0),
    ),
    train_cfg=dict(
        assigner=dict(
            type='HungarianAssigner',
            match_costs=[
                dict(type='FocalLossCost', weight=2.0),
                dict(type='BBoxL1Cost', weight=5.0, box_format='xywh'),
                dict(type='IoUCost', iou_mode='giou', weight=2.0),
            ],
        )
    ),
    test_cfg=dict(max_per_img=300),  # all queries; COCO counts the best 100
)
