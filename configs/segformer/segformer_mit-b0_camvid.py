_base_ = [
    '../_base_/models/segformer_mit-b0.py',
    '../_base_/datasets/camvid.py',
    '../_base_/schedules/nano_adamw.py',
    '../_base_/runtime_seg.py',
]
# From scratch, on two CPU cores: weights of the classes as in the nano model for CamVid.
class_weight = [0.5, 0.45, 2.0, 0.4, 0.8, 0.8, 2.0, 1.7, 0.95, 2.0, 1.8]
model = dict(
    data_preprocessor=dict(size=None, size_divisor=32, test_cfg=dict(size_divisor=32)),
    backbone=dict(drop_path_rate=0.0, init_cfg=None),
    decode_head=dict(
        type='SegformerHead',
        num_classes=11,
        norm_cfg=dict(type='BN'),
        loss_decode=dict(class_weight=class_weight),
    ),
    test_cfg=dict(_delete_=True, mode='whole'),
)

train_dataloader = dict(batch_size=4)
max_iters = 600
optim_wrapper = dict(optimizer=dict(lr=1e-3))
param_scheduler = [
    dict(type='OneCycleLR', eta_max=1e-3, total_steps=max_iters, pct_start=0.15, by_epoch=False)
]
train_cfg = dict(type='IterBasedTrainLoop', max_iters=max_iters, val_interval=max_iters)
default_hooks = dict(checkpoint=dict(interval=max_iters))
