_base_ = [
    '../_base_/models/segformer_mit-b0.py',
    '../_base_/datasets/shapes_semantic.py',
    '../_base_/schedules/nano_adamw.py',
    '../_base_/runtime_seg.py',
]
model = dict(
    data_preprocessor=dict(size=(128, 128)),
    backbone=dict(drop_path_rate=0.0, init_cfg=None),
    decode_head=dict(type='SegformerHead', num_classes=6, norm_cfg=dict(type='BN')),
    test_cfg=dict(_delete_=True, mode='whole'),
)

max_iters = 900
optim_wrapper = dict(optimizer=dict(lr=1e-3))
param_scheduler = [
    dict(type='OneCycleLR', eta_max=1e-3, total_steps=max_iters, pct_start=0.15, by_epoch=False)
]
train_cfg = dict(type='IterBasedTrainLoop', max_iters=max_iters, val_interval=max_iters)
default_hooks = dict(checkpoint=dict(interval=300))
