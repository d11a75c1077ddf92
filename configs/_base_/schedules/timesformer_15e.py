# The release's; the batch of 64 too, while the paper says 16 clips at the same rate.
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='SGD', lr=0.005, momentum=0.9, nesterov=True, weight_decay=1e-4),
)
param_scheduler = [
    dict(type='MultiStepLR', by_epoch=True, begin=0, end=15, milestones=[11, 14], gamma=0.1)
]
train_cfg = dict(by_epoch=True, max_epochs=15, val_interval=1)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
randomness = dict(seed=0)
auto_scale_lr = dict(enable=False, base_batch_size=64)
