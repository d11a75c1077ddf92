_base_ = [
    '../_base_/models/vit-vqgan-ss.py',
    '../_base_/datasets/celebahq_256.py',
    '../_base_/schedules/vit-vqgan_300k.py',
    '../_base_/runtime_vqgan.py',
]
train_dataloader = dict(batch_size=32)
# The schedule of the ViT-VQGAN paper.
max_iters, warmup = 500000, 50000
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-6, by_epoch=False, end=warmup),
    dict(type='CosineAnnealingLR', eta_min=5e-5, by_epoch=False, begin=warmup, end=max_iters),
]
train_cfg = dict(max_iters=max_iters)
auto_scale_lr = dict(base_batch_size=256)
