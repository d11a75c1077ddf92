_base_ = [
    '../_base_/models/semantic-fpn_ravlt-nano.py',
    '../_base_/datasets/camvid.py',
    '../_base_/schedules/nano_adamw.py',
    '../_base_/runtime_seg.py',
]
# Square roots of (median share of pixels / share of the class) in the training split: in a short
# training, poles and people would otherwise be lost to road and sky.
class_weight = [0.52, 0.44, 2.14, 0.38, 1.0, 0.68, 1.96, 2.0, 0.88, 2.65, 3.92]
model = dict(decode_head=dict(loss_decode=dict(class_weight=class_weight)))

max_iters = 750
optim_wrapper = dict(optimizer=dict(lr=2e-3))
param_scheduler = [
    dict(type='OneCycleLR', eta_max=2e-3, total_steps=max_iters, pct_start=0.15, by_epoch=False)
]
train_cfg = dict(type='IterBasedTrainLoop', max_iters=max_iters, val_interval=max_iters)
default_hooks = dict(checkpoint=dict(interval=375))
