_base_ = [
    '../_base_/models/mask2former_nano_seg.py',
    '../_base_/datasets/shapes_semantic.py',
    '../_base_/schedules/nano_adamw.py',
    '../_base_/runtime_seg.py',
]
custom_imports = dict(imports=['mmlinattn', 'mmdet.models'])

max_iters = 500
optim_wrapper = dict(optimizer=dict(lr=5e-4, weight_decay=1e-4), clip_grad=dict(max_norm=1.0))
param_scheduler = [
    dict(type='OneCycleLR', eta_max=5e-4, total_steps=max_iters, pct_start=0.15, by_epoch=False)
]
train_cfg = dict(type='IterBasedTrainLoop', max_iters=max_iters, val_interval=max_iters)
default_hooks = dict(checkpoint=dict(interval=max_iters))
