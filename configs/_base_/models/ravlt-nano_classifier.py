_base_ = './ravlt-nano.py'
model = dict(
    type='ImageClassifier',
    backbone=dict(_base_.ravlt_nano, out_indices=(3,), out_norm=False),
    neck=dict(type='RAVLTNeck', in_channels=256, out_channels=256, norm_cfg=dict(type='BN')),
    head=dict(
        type='LinearClsHead',
        num_classes=5,
        in_channels=256,
        loss=dict(type='CrossEntropyLoss', loss_weight=1.0),
        topk=(1,),
    ),
)
