# DINO small enough for two CPU cores, with three scales.
_base_ = './ravlt-nano.py'

model = dict(
    type='DINO',
    num_queries=50,
    with_box_refine=True,
    as_two_stage=True,
    data_preprocessor=dict(
        type='DetDataPreprocessor',
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        pad_size_divisor=32,
    ),
    backbone=dict(_base_.ravlt_nano, out_indices=(1, 2, 3)),
    neck=dict(
        type='ChannelMapper',
        in_channels=[64, 128, 256],
        kernel_size=1,
        out_channels=64,
        act_cfg=None,
        norm_cfg=dict(type='GN', num_groups=32),
        num_outs=3,
    ),
    encoder=dict(
        num_layers=2,
        layer_cfg=dict(
            self_attn_cfg=dict(embed_dims=64, num_heads=4, num_levels=3, dropout=0.0),
            ffn_cfg=dict(embed_dims=64, feedforward_channels=128, ffn_drop=0.0),
        ),
    ),
    decoder=dict(
        num_layers=3,
        return_intermediate=True,
        layer_cfg=dict(
            self_attn_cfg=dict(embed_dims=64, num_heads=4, dropout=0.0),
            cross_attn_cfg=dict(embed_dims=64, num_heads=4, num_levels=3, dropout=0.0),
            ffn_cfg=dict(embed_dims=64, feedforward_channels=128, ffn_drop=0.0),
        ),
        post_norm_cfg=None,
    ),
    positional_encoding=dict(num_feats=32, normalize=True, offset=0.0, temperature=20),
    bbox_head=dict(
        type='DINOHead',
        embed_dims=64,
        num_classes=5,
        sync_cls_avg_factor=True,
        loss_cls=dict(type='FocalLoss', use_sigmoid=True, gamma=2.0, alpha=0.25, loss_weight=1.0),
        loss_bbox=dict(type='L1Loss', loss_weight=5.0),
        loss_iou=dict(type='GIoULoss', loss_weight=2.0),
    ),
    dn_cfg=dict(
        label_noise_scale=0.5,
        box_noise_scale=1.0,
        group_cfg=dict(dynamic=True, num_groups=None, num_dn_queries=20),
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
    test_cfg=dict(max_per_img=50),
)
