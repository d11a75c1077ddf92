_base_ = [
    '../_base_/models/semantic-fpn_ravlt-nano.py',
    '../_base_/datasets/shapes_semantic.py',
    '../_base_/schedules/nano_adamw.py',
    '../_base_/runtime_seg.py',
]
model = dict(decode_head=dict(num_classes=6))

max_iters = 1400
optim_wrapper = dict(optimizer=dict(lr=2e-3))
param_scheduler = [
    dict(type='OneCycleLR', eta_max=2e-3, total_steps=max_iters, pct_start=0.15, by_epoch=False)
]
train_cfg = dict(type='IterBasedTrainLoop', max_iters=max_iters, val_interval=max_iters)
default_hooks = dict(checkpoint=dict(interval=700))
