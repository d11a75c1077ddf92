# The head predicts at a fourth of the size, too coarse for borders two pixels wide: images are
# doubled. Crops of three sizes are resized to 512x512, where images are large enough.
_base_ = './semantic-fpn_ravlt-nano-linear_nuclei-256x256.py'

train_pipeline = [
    *_base_.train_pipeline[:2],  # image and map
    dict(
        type='RandomChoice',
        transforms=[
            [
                dict(type='RandomCrop', crop_size=(size, size)),
                dict(type='Resize', scale_factor=512 / size, keep_ratio=True),
            ]
            for size in (341, 256, 171)
        ],
    ),
    *_base_.train_pipeline[-3:],  # flips, colours, packing
]
test_pipeline = [
    _base_.test_pipeline[0],
    dict(type='Resize', scale_factor=2.0, keep_ratio=True),
    *_base_.test_pipeline[1:],
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
