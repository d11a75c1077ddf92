norm_cfg = dict(type='SyncBN', requires_grad=True)
model = dict(
    type='EncoderDecoder',
    data_preprocessor=dict(
        type='SegDataPreProcessor',
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        pad_val=0,
        seg_pad_val=255,
        size=(1024, 1024),
    ),
    backbone=dict(
        type='MixTransformer',
        arch='b0',
        attn_cfg=dict(type='SpatialReductionAttention'),
        init_cfg=dict(
            type='Pretrained', checkpoint='checkpoints/mit-b0_in1k.pth', prefix='backbone.'
        ),
    ),
    decode_head=dict(
        # The release's head. With MMSegmentation's layers:
        # --cfg-options model.decode_head.type=mmlinattn.models.decode_heads.LevelwiseSegformerHead
        type='mmlinattn.models.decode_heads.AllMLPHead',
        in_channels=[32, 64, 160, 256],
        in_index=[0, 1, 2, 3],
        channels=256,
        dropout_ratio=0.1,
        num_classes=19,
        norm_cfg=norm_cfg,
        align_corners=False,
        loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=False, loss_weight=1.0),
    ),
    train_cfg=dict(),
    # Whole images: --cfg-options model.test_cfg.mode=whole
    test_cfg=dict(mode='slide', crop_size=(1024, 1024), stride=(768, 768)),
)
