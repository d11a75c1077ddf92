_base_ = [
    '../_base_/models/mit_classifier.py',
    '../_base_/datasets/imagenet_224.py',
    '../_base_/schedules/imagenet_300e.py',
    '../_base_/runtime_cls.py',
]

model = dict(
    backbone=dict(_delete_=True, type='Swin', arch='t', out_indices=(3,)),
    head=dict(in_channels=768),
)
optim_wrapper = dict(paramwise_cfg=dict(custom_keys={'.relative_bias': dict(decay_mult=0.0)}))
