_base_ = [
    '../_base_/models/segformer_mit-b0.py',
    '../_base_/datasets/nuclei_semantic.py',
    '../_base_/schedules/nano_adamw.py',
    '../_base_/runtime_seg.py',
]
model = dict(
    data_preprocessor=dict(
        size=_base_.crop_size, size_divisor=None, test_cfg=dict(size_divisor=32)
    ),
    backbone=dict(drop_path_rate=0.0, init_cfg=None),
    decode_head=dict(
        type='SegformerHead',
        num_classes=3,
        norm_cfg=dict(type='BN'),
    ),
    test_cfg=dict(_delete_=True, mode='whole'),
)

max_iters = 3000
optim_wrapper = dict(optimizer=dict(lr=1e-3))
param_scheduler = [
    dict(type='OneCycleLR', eta_max=1e-3, total_steps=max_iters, pct_start=0.15, by_epoch=False)
]
train_cfg = dict(type='IterBasedTrainLoop', max_iters=max_iters, val_interval=1000)
default_hooks = dict(checkpoint=dict(interval=1000), logger=dict(interval=50))
