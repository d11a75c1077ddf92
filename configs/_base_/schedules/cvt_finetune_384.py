# Section 4.1 of the CvT paper: SGD, 512 images a step, 20,000 steps, else as ViT is fine-tuned.
train_cfg = dict(type='IterBasedTrainLoop', max_iters=20000, val_interval=2500)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

# Unsaid in the paper: rate of the release (FINETUNE.BASE_LR, for 512 images); clipping, decay and
# schedule of ViT.
optim_wrapper = dict(
    type='AmpOptimWrapper',
    optimizer=dict(type='SGD', lr=3e-3, momentum=0.9, weight_decay=0.0),
    clip_grad=dict(max_norm=1.0),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-3, by_epoch=False, end=500),
    dict(type='CosineAnnealingLR', eta_min=0.0, by_epoch=False, begin=500, end=20000),
]
auto_scale_lr = dict(enable=False, base_batch_size=512)
# Each GPU has batch norms of its own. The release tests with the statistics of the first one, here
# with their mean.
custom_hooks = [dict(type='SyncBuffersHook')]
