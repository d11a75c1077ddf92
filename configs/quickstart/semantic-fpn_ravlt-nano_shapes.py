_base_ = [
    '../_base_/models/semantic-fpn_ravlt-nano.py',
    '../_base_/datasets/shapes_semantic.py',
    '../_base_/schedules/nano_adamw.py',
    '../_base_/runtime_seg.py',
]
model = dict(decode_head=dict(num_classes=6))

# Two or three minutes on one core. 86% of the pixels are background, of which these crops have
# less: from whole images the classes of the shapes are learnt far more slowly.
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', reduce_zero_label=True),
    dict(type='RandomCrop', crop_size=(96, 96), cat_max_ratio=0.6),
    dict(
        type='RandomFlip', prob=[0.25, 0.25, 0.25], direction=['horizontal', 'vertical', 'diagonal']
    ),
    dict(type='PackSegInputs'),
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))

max_iters = 900
optim_wrapper = dict(optimizer=dict(lr=3e-3))
param_scheduler = [
    dict(type='OneCycleLR', eta_max=3e-3, total_steps=max_iters, pct_start=0.15, by_epoch=False)
]
train_cfg = dict(type='IterBasedTrainLoop', max_iters=max_iters, val_interval=max_iters)
default_hooks = dict(checkpoint=dict(interval=max_iters))
