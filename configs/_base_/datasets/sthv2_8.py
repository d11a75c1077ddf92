# Something-Something-v2, lists of MMAction2; a frame of each of 8 equal segments.
_base_ = './kinetics400_8x32.py'
data_root = 'data/sthv2/'
train_pipeline = [
    dict(type='LoadClip', num_frames=8),
    dict(type='ResizeClip', short_side=(256, 320), inverse=True),
    dict(type='CropClip', size=224, mode='random'),
    dict(type='PackInputs'),
]
test_pipeline = [
    dict(type='LoadClip', num_frames=8, place='middle'),
    dict(type='ResizeClip', short_side=224),
    dict(type='CropClip', size=224, mode='three'),
    dict(type='PackInputs'),
]
train_dataloader = dict(
    dataset=dict(
        data_root=data_root,
        ann_file='sthv2_train_list_videos.txt',
        data_prefix=dict(video='videos'),
        pipeline=train_pipeline,
    )
)
val_dataloader = dict(
    dataset=dict(
        data_root=data_root,
        ann_file='sthv2_val_list_videos.txt',
        data_prefix=dict(video='videos'),
        pipeline=test_pipeline,
    )
)
test_dataloader = val_dataloader
