_base_ = './coco_detection.py'

# DETR's augmentation: one of 11 sizes, or a random crop first. The size before the crop has no
# limit on the long side. Pillow resizes images, which smooths where it shrinks; OpenCV does not.
sides = dict(
    type='RandomChoiceResize',
    scales=[(side, 1333) for side in range(480, 801, 32)],
    keep_ratio=True,
    backend='pillow',
)
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='RandomFlip', prob=0.5),
    dict(
        type='RandomChoice',
        transforms=[
            [sides],
            [
                dict(
                    type='RandomChoiceResize',
                    scales=[(400, 100000), (500, 100000), (600, 100000)],
                    keep_ratio=True,
                    backend='pillow',
                ),
                dict(
                    type='RandomCrop',
                    crop_type='absolute_range',
                    crop_size=(384, 600),
                    allow_negative_crop=True,
                ),
                sides,
            ],
        ],
    ),
    dict(type='PackDetInputs'),
]
test_pipeline = _base_.test_pipeline
test_pipeline[1].update(backend='pillow')

# All images, those without objects too; batches of any mixture of shapes, none incomplete.
train_dataloader = dict(
    batch_sampler=None,
    drop_last=True,
    dataset=dict(filter_cfg=dict(filter_empty_gt=False, min_size=0), pipeline=train_pipeline),
)
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
