_base_ = [
    '../_base_/models/vit_classifier.py',
    '../_base_/datasets/imagenet_224.py',
    '../_base_/schedules/imagenet_300e.py',
    '../_base_/runtime_cls.py',
]

model = dict(
    backbone=dict(_delete_=True, type='CvT', arch='13', out_indices=(2,), out_type='cls_token'),
    head=dict(in_channels=384),
)
optim_wrapper = dict(paramwise_cfg=dict(custom_keys={'.cls_token': dict(decay_mult=0.0)}))
