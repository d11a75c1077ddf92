_base_ = [
    '../_base_/models/vit_classifier.py',
    '../_base_/datasets/imagenet_224.py',
    '../_base_/schedules/imagenet_300e.py',
    '../_base_/runtime_cls.py',
]

model = dict(
    backbone=dict(_delete_=True, type='ViL', arch='tiny', out_indices=(3,), out_type='avg_featmap'),
    head=dict(in_channels=384),
)
names = ('row_embed', 'column_embed', 'extra_embed', 'extra_tokens')
optim_wrapper = dict(paramwise_cfg=dict(custom_keys={name: dict(decay_mult=0.0) for name in names}))
