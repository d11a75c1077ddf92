_base_ = [
    '../_base_/models/mit_classifier.py',
    '../_base_/datasets/imagenet_224.py',
    '../_base_/schedules/swin_300e.py',
    '../_base_/runtime_cls.py',
]

model = dict(
    backbone=dict(_delete_=True, type='MLLA', arch='tiny', out_indices=(3,)),
    head=dict(in_channels=512),
)
# The release averages the weights, decay 0.9996 for 4096 images a step, and keeps the best epoch of
# the model and its average. Its distillation from the average (MESA) is not here.
# Each GPU has batch norms of its own. The release broadcasts the statistics of the first one, here
# a test of the model has their mean.
custom_hooks = [
    dict(type='ModelEMAHook', momentum=1 - 0.9996**0.25, update_buffers=True),
    dict(type='SyncBuffersHook'),
]
default_hooks = dict(checkpoint=dict(save_best='accuracy/top1_best', rule='greater'))
train_dataloader = dict(drop_last=True)
# Its test is in float32.
val_cfg = dict(fp16=False)
test_cfg = dict(fp16=False)
