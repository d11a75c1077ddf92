train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=50, val_interval=1)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-4, weight_decay=1e-4),
    paramwise_cfg=dict(custom_keys={'backbone': dict(lr_mult=0.1)}),
    clip_grad=dict(max_norm=0.1, norm_type=2),
)
param_scheduler = [
    dict(type='MultiStepLR', begin=0, end=50, by_epoch=True, milestones=[40], gamma=0.1)
]
auto_scale_lr = dict(enable=False, base_batch_size=16)
