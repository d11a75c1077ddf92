# Kinetics-400, lists of MMAction2; 8 frames, one of 32 at 30 frames per second. A test takes the
# start of a video, as the release does with one clip; the paper says its middle (place='middle').
data_root = 'data/kinetics400/'
train_pipeline = [
    dict(type='LoadClip', num_frames=8, interval=32, fps=30),
    dict(type='ResizeClip', short_side=(256, 320)),
    dict(type='FlipClip', prob=0.5),
    dict(type='CropClip', size=224, mode='random'),
    dict(type='PackInputs'),
]
test_pipeline = [
    dict(type='LoadClip', num_frames=8, interval=32, fps=30, place='start'),
    dict(type='ResizeClip', short_side=224),
    dict(type='CropClip', size=224, mode='three'),
    dict(type='PackInputs'),
]
train_dataloader = dict(
    batch_size=8,
    num_workers=8,
    persistent_workers=True,
    drop_last=True,
    sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(
        type='VideoList',
        data_root=data_root,
        ann_file='kinetics400_train_list_videos.txt',
        data_prefix=dict(video='videos_train'),
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=8,
    num_workers=8,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='VideoList',
        data_root=data_root,
        ann_file='kinetics400_val_list_videos.txt',
        data_prefix=dict(video='videos_val'),
        pipeline=test_pipeline,
        test_mode=True,
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(type='Accuracy', topk=(1, 5))
test_evaluator = val_evaluator
