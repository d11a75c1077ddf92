# Moving Shapes: 16 frames of 32x32 pixels, of which 8 are read; 4 classes.
data_root = 'data/moving_shapes/'
metainfo = dict(
    classes=(
        'clockwise',
        'anticlockwise',
        'clockwise then anticlockwise',
        'anticlockwise then clockwise',
    )
)
train_pipeline = [
    dict(type='LoadClip', num_frames=8),
    dict(type='ResizeClip', short_side=(32, 36)),
    dict(type='CropClip', size=32, mode='random'),
    dict(type='PackInputs'),
]
test_pipeline = [
    dict(type='LoadClip', num_frames=8, place='middle'),
    dict(type='CropClip', size=32, mode='center'),
    dict(type='PackInputs'),
]
train_dataloader = dict(
    batch_size=16,
    num_workers=0,  # on two cores a second process costs more than it brings
    persistent_workers=False,
    sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(
        type='VideoList',
        data_root=data_root,
        ann_file='train.txt',
        data_prefix=dict(video='videos'),
        metainfo=metainfo,
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=50,
    num_workers=0,
    persistent_workers=False,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='VideoList',
        data_root=data_root,
        ann_file='val.txt',
        data_prefix=dict(video='videos'),
        metainfo=metainfo,
        pipeline=test_pipeline,
        test_mode=True,
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(type='Accuracy', topk=(1,))
test_evaluator = val_evaluator
