# ViT-VQGAN's Adam for generator and discriminator: 10% of the steps of linear warm-up to 1e-4, then
# a cosine to 5e-5. Its paper has 50k of 500k steps; for other lengths the share is ours.
max_iters, warmup = 300000, 30000
optim_wrapper = dict(
    type='OptimWrapper',
    constructor='GeneratorDiscriminatorConstructor',
    optimizer=dict(type='AdamW', lr=1e-4, betas=(0.9, 0.99), weight_decay=1e-4),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-6, by_epoch=False, end=warmup),
    dict(type='CosineAnnealingLR', eta_min=5e-5, by_epoch=False, begin=warmup, end=max_iters),
]
train_cfg = dict(by_epoch=False, max_iters=max_iters, val_interval=10000)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
auto_scale_lr = dict(enable=False, base_batch_size=64)
