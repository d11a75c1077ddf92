_base_ = [
    '../_base_/models/vit-vqgan-ss.py',
    '../_base_/datasets/celebahq_1024.py',
    '../_base_/schedules/vit-vqgan_300k.py',
    '../_base_/runtime_vqgan.py',
]
model = dict(
    backbone=dict(
        arch=dict(patch_size=16),
        img_size=1024,
        attn_cfg=dict(type='RWGKA', num_anchors=64, decay=0.1),
    ),
    discriminator=dict(img_size=1024, base_channels=32),
)
train_dataloader = dict(batch_size=4)
max_iters, warmup = 100000, 10000
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-6, by_epoch=False, end=warmup),
    dict(type='CosineAnnealingLR', eta_min=5e-5, by_epoch=False, begin=warmup, end=max_iters),
]
train_cfg = dict(max_iters=max_iters)
auto_scale_lr = dict(base_batch_size=32)
