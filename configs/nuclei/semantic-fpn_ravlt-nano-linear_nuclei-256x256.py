_base_ = [
    '../_base_/models/semantic-fpn_ravlt-nano.py',
    '../_base_/datasets/nuclei_semantic.py',
    '../_base_/schedules/nano_adamw.py',
    '../_base_/runtime_seg.py',
]
model = dict(backbone=dict(attn_cfg='RALA'), decode_head=dict(num_classes=3))

max_iters = 6000
optim_wrapper = dict(optimizer=dict(lr=1e-3))
param_scheduler = [
    dict(type='OneCycleLR', eta_max=1e-3, total_steps=max_iters, pct_start=0.15, by_epoch=False)
]
train_cfg = dict(type='IterBasedTrainLoop', max_iters=max_iters, val_interval=1000)
default_hooks = dict(checkpoint=dict(interval=1000), logger=dict(interval=50))
