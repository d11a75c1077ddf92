# Fine-tuning as in CvT's release (lib/dataset/transformas/build.py): squeezed to 416 x 416, random
# crop of 384; test images squeezed to 384 x 384 (CENTER_CROP False).
_base_ = './imagenet_224.py'

train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(416, 416), backend='pillow', interpolation='bicubic'),
    dict(type='RandomCrop', crop_size=384),
    dict(type='RandomFlip', prob=0.5, direction='horizontal'),
    dict(type='PackInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(384, 384), backend='pillow', interpolation='bicubic'),
    dict(type='PackInputs'),
]

train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
