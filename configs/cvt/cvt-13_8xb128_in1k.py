_base_ = [
    '../_base_/models/cvt_classifier.py',
    '../_base_/datasets/imagenet_224.py',
    '../_base_/schedules/cvt_300e.py',
    '../_base_/runtime_cls.py',
]

# The published figure is that of the best epoch.
default_hooks = dict(checkpoint=dict(save_best='accuracy/top1', rule='greater'))
train_dataloader = dict(drop_last=True)
