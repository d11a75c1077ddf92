# Crops of Shapes without labels, 64x64.
data_root = 'data/shapes/imagenet'
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='RandomFlip', prob=0.5, direction='horizontal'),
    dict(type='PackInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    # The crops are 64x64 already; pictures of other sizes can be predicted.
    dict(type='ResizeEdge', scale=64, edge='short'),
    dict(type='CenterCrop', crop_size=64),
    dict(type='PackInputs'),
]
train_dataloader = dict(
    batch_size=16,
    num_workers=0,  # on two cores a second process costs more than it brings
    persistent_workers=False,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(
        type='CustomDataset',
        data_root=data_root,
        data_prefix='train',
        with_label=False,
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=16,
    num_workers=0,
    persistent_workers=False,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='CustomDataset',
        data_root=data_root,
        data_prefix='val',
        with_label=False,
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader
val_evaluator = [dict(type='ReconstructionMetric')]
test_evaluator = val_evaluator
