# Cell nuclei under a microscope in three stains, 256x256 to 1272x603: 28 images to train on and 14
# to test on in the repository. configs/nuclei/README.md says how to train on the whole set.
data_root = 'demo/nuclei/'
metainfo = dict(classes=('nucleus',), palette=[(250, 170, 30)])
# Crops of 256, 171 and 128 pixels, enlarged to 256, the size of the smallest images.
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    dict(
        type='RandomChoice',
        transforms=[
            [
                dict(
                    type='RandomCrop',
                    crop_size=(size, size),
                    recompute_bbox=True,
                    allow_negative_crop=True,
                ),
                dict(type='Resize', scale=(256, 256), keep_ratio=True),
            ]
            for size in (256, 171, 128)
        ],
    ),
    # A mask may lie outside of a crop that its box reaches into.
    dict(
        type='FilterAnnotations',
        min_gt_bbox_wh=(2, 2),
        min_gt_mask_area=4,
        by_mask=True,
        keep_empty=False,
    ),
    dict(
        type='RandomFlip', prob=[0.25, 0.25, 0.25], direction=['horizontal', 'vertical', 'diagonal']
    ),
    dict(type='PhotoMetricDistortion'),
    dict(type='PackDetInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    # MMDetection's RoI heads want the scale that a resize leaves behind.
    dict(type='Resize', scale_factor=1.0, keep_ratio=True),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    dict(
        type='PackDetInputs',
        meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor'),
    ),
]
train_dataloader = dict(
    batch_size=2,
    num_workers=0,  # on two cores a second process costs more than it brings
    persistent_workers=False,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(
        type='CocoDataset',
        data_root=data_root,
        metainfo=metainfo,
        ann_file='annotations/train.json',
        data_prefix=dict(img='images/'),
        filter_cfg=dict(filter_empty_gt=True),
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=1,
    num_workers=0,
    persistent_workers=False,
    drop_last=False,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='CocoDataset',
        data_root=data_root,
        metainfo=metainfo,
        ann_file='annotations/val.json',
        data_prefix=dict(img='images/'),
        test_mode=True,
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(
    type='CocoMetric', ann_file=data_root + 'annotations/val.json', metric=['bbox', 'segm']
)
test_evaluator = val_evaluator
