_base_ = [
    '../_base_/models/ravlt-nano.py',
    '../_base_/datasets/shapes_classification.py',
    '../_base_/schedules/nano_adamw.py',
    '../_base_/runtime_cls.py',
]
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

max_epochs = 5
param_scheduler = [
    dict(
        type='OneCycleLR',
        eta_max=1e-3,
        total_steps=max_epochs,
        pct_start=0.15,
        by_epoch=True,
        convert_to_iter_based=True,
    )
]
train_cfg = dict(by_epoch=True, max_epochs=max_epochs, val_interval=max_epochs)
