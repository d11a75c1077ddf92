# Mask2Former small enough for two CPU cores, for instance segmentation.
_base_ = './ravlt-nano.py'

attention = dict(embed_dims=64, num_heads=4, dropout=0.0, batch_first=True)
ffn = dict(embed_dims=64, feedforward_channels=128, num_fcs=2, ffn_drop=0.0)
num_classes = 5
model = dict(
    type='Mask2Former',
    data_preprocessor=dict(
        type='DetDataPreprocessor',
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        pad_size_divisor=32,
        pad_mask=True,
        mask_pad_value=0,
    ),
    backbone=_base_.ravlt_nano,
    panoptic_head=dict(
        type='Mask2FormerHead',
        in_channels=[32, 64, 128, 256],
        strides=[4, 8, 16, 32],
        feat_channels=64,
        out_channels=64,
        num_things_classes=num_classes,
        num_stuff_classes=0,
        num_queries=30,
        num_transformer_feat_level=3,
        pixel_decoder=dict(
            type='MSDeformAttnPixelDecoder',
            num_outs=3,
            norm_cfg=dict(type='GN', num_groups=32),
            act_cfg=dict(type='ReLU'),
            encoder=dict(
                num_layers=2,
                layer_cfg=dict(
                    self_attn_cfg=dict(attention, num_levels=3, num_points=4), ffn_cfg=ffn
                ),
            ),
            positional_encoding=dict(num_feats=32, normalize=True),
        ),
        enforce_decoder_input_project=False,
        positional_encoding=dict(num_feats=32, normalize=True),
        transformer_decoder=dict(
            return_intermediate=True,
            num_layers=3,
            layer_cfg=dict(self_attn_cfg=attention, cross_attn_cfg=attention, ffn_cfg=ffn),
            init_cfg=None,
        ),
        loss_cls=dict(
            type='CrossEntropyLoss',
            use_sigmoid=False,
            loss_weight=2.0,
            reduction='mean',
            class_weight=[1.0] * num_classes + [0.1],
        ),
        loss_mask=dict(
            type='CrossEntropyLoss', use_sigmoid=True, reduction='mean', loss_weight=5.0
        ),
        loss_dice=dict(
            type='DiceLoss',
            use_sigmoid=True,
            activate=True,
            reduction='mean',
            naive_dice=True,
            eps=1.0,
            loss_weight=5.0,
        ),
    ),
    panoptic_fusion_head=dict(
        type='MaskFormerFusionHead',
        num_things_classes=num_classes,
        num_stuff_classes=0,
        loss_panoptic=None,
        init_cfg=None,
    ),
    train_cfg=dict(
        num_points=1024,
        oversample_ratio=3.0,
        importance_sample_ratio=0.75,
        assigner=dict(
            type='HungarianAssigner',
            match_costs=[
                dict(type='ClassificationCost', weight=2.0),
                dict(type='CrossEntropyLossCost', weight=5.0, use_sigmoid=True),
                dict(type='DiceCost', weight=5.0, pred_act=True, eps=1.0),
            ],
        ),
        sampler=dict(type='MaskPseudoSampler'),
    ),
    test_cfg=dict(
        panoptic_on=False,
        semantic_on=False,
        instance_on=True,
        max_per_image=30,
        iou_thr=0.8,
        filter_low_score=True,
    ),
)
