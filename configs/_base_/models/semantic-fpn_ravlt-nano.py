# A RAVLT and a Semantic FPN small enough for two CPU cores.
_base_ = './ravlt-nano.py'
norm_cfg = dict(type='BN')
model = dict(
    type='EncoderDecoder',
    data_preprocessor=dict(
        type='SegDataPreProcessor',
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        pad_val=0,
        seg_pad_val=255,
        size_divisor=32,
        # Tested at the sizes that it is trained at: maps of the stages must stay aligned.
        test_cfg=dict(size_divisor=32),
    ),
    neck=dict(type='FPN', in_channels=[32, 64, 128, 256], out_channels=64, num_outs=4),
    decode_head=dict(
        type='FPNHead',
        in_channels=[64, 64, 64, 64],
        in_index=[0, 1, 2, 3],
        feature_strides=[4, 8, 16, 32],
        channels=64,
        dropout_ratio=0.1,
        num_classes=11,
        norm_cfg=norm_cfg,
        align_corners=False,
        loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=False, loss_weight=1.0),
    ),
    train_cfg=dict(),
    test_cfg=dict(mode='whole'),
)
