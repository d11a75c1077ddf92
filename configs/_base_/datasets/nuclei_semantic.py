# Cell nuclei as background, interior and border, drawn from the masks of nuclei_instance.py.
data_root = 'demo/nuclei/'
# Crops of the size of the smallest images; tests are at native size.
crop_size = (256, 256)
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadInstanceMap'),
    dict(
        type='RandomChoice',
        transforms=[
            [dict(type='Resize', scale_factor=factor, keep_ratio=True)]
            for factor in (0.75, 1.0, 1.5)
        ],
    ),
    dict(type='RandomCrop', crop_size=crop_size),
    dict(
        type='RandomFlip', prob=[0.25, 0.25, 0.25], direction=['horizontal', 'vertical', 'diagonal']
    ),
    dict(type='PhotoMetricDistortion'),
    dict(type='PackSegInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadInstanceMap'),
    dict(type='PackSegInputs'),
]
train_dataloader = dict(
    batch_size=4,
    num_workers=0,  # on two cores a second process costs more than it brings
    persistent_workers=False,
    sampler=dict(type='AreaSampler'),
    dataset=dict(
        type='InstanceMaps',
        data_root=data_root,
        ann_file='annotations/train.json',
        data_prefix=dict(img_path='images/'),
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=1,
    num_workers=0,
    persistent_workers=False,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='InstanceMaps',
        data_root=data_root,
        ann_file='annotations/val.json',
        data_prefix=dict(img_path='images/'),
        test_mode=True,
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader
val_evaluator = [
    dict(type='IoUMetric', iou_metrics=['mIoU']),
    dict(type='BoundaryIoUMetric'),
    # The IoU of each class.
    dict(type='BoundaryIoUMetric', dilation_ratio=1.0, classwise=True, prefix='class'),
]
test_evaluator = val_evaluator
