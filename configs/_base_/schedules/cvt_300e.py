# CvT's release (experiments/imagenet/cvt/cvt-13-224x224.yaml). Rates change by epochs, as timm
# counts them, each with its own index: no lag.
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=300, val_interval=1)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

optim_wrapper = dict(
    type='AmpOptimWrapper',
    optimizer=dict(type='AdamW', lr=2e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.05),
    # A step has 2048 images: two iterations of 8 GPUs x 128. A batch norm sees 128; the release has
    # 256 images on a GPU and one iteration.
    accumulative_counts=2,
    paramwise_cfg=dict(
        norm_decay_mult=0.0,
        bias_decay_mult=0.0,
        flat_decay_mult=0.0,
        custom_keys={'.cls_token': dict(decay_mult=0.0)},
    ),
)
param_scheduler = [
    dict(type='mmlinattn.engine.schedulers.LinearLR', start_factor=5e-4, end=5),
    dict(type='mmlinattn.engine.schedulers.CosineAnnealingLR', eta_min=1e-5, end=300, warmup=5),
]
auto_scale_lr = dict(enable=False, base_batch_size=2048)
# Each GPU has batch norms of its own. The release tests with the statistics of the first one, here
# with their mean.
custom_hooks = [dict(type='SyncBuffersHook')]
