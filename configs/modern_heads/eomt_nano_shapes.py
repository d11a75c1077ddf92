_base_ = [
    '../_base_/datasets/shapes_semantic.py',
    '../_base_/models/ravlt-nano.py',
    '../_base_/schedules/nano_adamw.py',
    '../_base_/runtime_seg.py',
]

# 16x16 patches; queries join them in the last three layers.
model = dict(
    type='mmlinattn.models.segmentors.EoMT',
    num_query_layers=3,
    data_preprocessor=dict(
        type='SegDataPreProcessor',
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        pad_val=0,
        seg_pad_val=255,
        size_divisor=8,
        test_cfg=dict(size_divisor=8),
    ),
    backbone=dict(
        type='ViT',
        arch=dict(embed_dims=96, num_heads=3, depth=8, patch_size=8),
        img_size=128,
        with_cls_token=False,
        init_cfg=_base_.ravlt_nano.init_cfg,
    ),
    decode_head=dict(
        type='mmlinattn.models.segmentors.EoMTHead',
        in_channels=96,
        num_classes=6,
        num_queries=20,
        num_upscales=1,
        num_points=1024,
    ),
    train_cfg=dict(),
    test_cfg=dict(mode='whole'),
)

max_iters = 500
optim_wrapper = dict(optimizer=dict(lr=1e-3), clip_grad=dict(max_norm=1.0))
param_scheduler = [
    dict(type='OneCycleLR', eta_max=1e-3, total_steps=max_iters, pct_start=0.15, by_epoch=False)
]
train_cfg = dict(type='IterBasedTrainLoop', max_iters=max_iters, val_interval=max_iters)
default_hooks = dict(checkpoint=dict(interval=max_iters))
