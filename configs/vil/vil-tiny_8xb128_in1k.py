_base_ = [
    '../_base_/models/vit_classifier.py',
    '../_base_/datasets/imagenet_224.py',
    '../_base_/schedules/vil_300e.py',
    '../_base_/runtime_cls.py',
]

model = dict(
    backbone=dict(_delete_=True, type='ViL', arch='tiny', out_indices=(3,), out_type='avg_featmap'),
    head=dict(in_channels=384),
)
# The published figure is that of the best epoch.
default_hooks = dict(checkpoint=dict(save_best='accuracy/top1', rule='greater'))
train_dataloader = dict(drop_last=True)
