# The rates of the release for ADE20K, about 31 epochs. README.md says what differs.
_base_ = ['../_base_/datasets/ade20k_512x512.py', '../_base_/runtime_seg.py']

crop_size = (512, 512)
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
        size=crop_size,
    ),
    backbone=dict(
        type='ViT',
        arch='dinov3-b',
        # Made from the release of ViT-B by mmlinattn convert --source dinov3.
        init_cfg=dict(
            type='Pretrained', checkpoint='checkpoints/dinov3-b_lvd1689m.pth', prefix='backbone.'
        ),
    ),
    decode_head=dict(
        type='mmlinattn.models.segmentors.EoMTHead',
        in_channels=768,
        num_classes=150,
        num_queries=100,
        num_upscales=2,
    ),
    train_cfg=dict(),
    test_cfg=dict(mode='slide', crop_size=crop_size, stride=(341, 341)),
)

max_iters = 40000
optim_wrapper = dict(
    type='AmpOptimWrapper',
    loss_scale='dynamic',
    constructor='LayerDecayOptimWrapperConstructor',
    optimizer=dict(type='AdamW', lr=1e-4, betas=(0.9, 0.999), weight_decay=0.05),
    clip_grad=dict(max_norm=0.01),
    paramwise_cfg=dict(layer_decay_rate=0.8),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-3, by_epoch=False, begin=0, end=1500),
    dict(type='PolyLR', eta_min=0.0, power=0.9, begin=1500, end=max_iters, by_epoch=False),
]
train_cfg = dict(type='IterBasedTrainLoop', max_iters=max_iters, val_interval=4000)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
auto_scale_lr = dict(enable=False, base_batch_size=16)
