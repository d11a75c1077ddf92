norm_cfg = dict(type='SyncBN', requires_grad=True)
model = dict(
    type='ImageClassifier',
    data_preprocessor=dict(
        type='ClsDataPreprocessor',
        num_classes=1000,
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        to_rgb=True,
    ),
    backbone=dict(type='RAVLT', arch='tiny', out_indices=(3,), out_norm=False, norm_cfg=norm_cfg),
    neck=dict(type='RAVLTNeck', in_channels=512, out_channels=1024, norm_cfg=norm_cfg),
    head=dict(
        type='LinearClsHead',
        num_classes=1000,
        in_channels=1024,
        init_cfg=dict(type='TruncNormal', layer='Linear', std=0.02, bias=0.0),
        loss=dict(type='LabelSmoothLoss', label_smooth_val=0.1, mode='original'),
        cal_acc=False,
    ),
    train_cfg=dict(augments=[dict(type='Mixup', alpha=0.8), dict(type='CutMix', alpha=1.0)]),
)
