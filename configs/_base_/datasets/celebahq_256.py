# CelebA-HQ without labels, in the split of VQGAN: 25,000 images to train, 5,000 to test.
data_root = 'data/celebahq'
scale = 256
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=scale, interpolation='bicubic'),
    dict(type='RandomFlip', prob=0.5, direction='horizontal'),
    dict(type='PackInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=scale, interpolation='bicubic'),
    dict(type='PackInputs'),
]
train_dataloader = dict(
    batch_size=8,
    num_workers=8,
    persistent_workers=True,
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
    batch_size=8,
    num_workers=8,
    persistent_workers=True,
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
test_evaluator = [
    dict(type='ReconstructionMetric'),
    dict(type='FrechetDistance', inception='checkpoints/weights-inception-2015-12-05-6726825d.pth'),
]
