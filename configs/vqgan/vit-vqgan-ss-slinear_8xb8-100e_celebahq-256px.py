# Figure 3 of the RWGKA paper: 100 epochs of 25,000 images in batches of 64.
_base_ = './vit-vqgan-ss-rwgka_8xb8-300k_celebahq-256px.py'
model = dict(backbone=dict(attn_cfg=dict(_delete_=True, type='SlinearAttention', steps=1)))
max_iters, warmup = 39063, 3906
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-6, by_epoch=False, end=warmup),
    dict(type='CosineAnnealingLR', eta_min=5e-5, by_epoch=False, begin=warmup, end=max_iters),
]
train_cfg = dict(max_iters=max_iters)
