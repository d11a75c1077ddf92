# DeiT's augmentation for images that are not resized: a crop of the padded image in place of a
# random part of it.
_base_ = './imagenet_224.py'

data_root = 'data/cifar-100-binary'
data_preprocessor = dict(num_classes=100)
train_pipeline = [dict(type='RandomCrop', crop_size=32, padding=4), *_base_.train_pipeline[2:]]
test_pipeline = [dict(type='PackInputs')]

train_dataloader = dict(
    batch_size=64,
    num_workers=4,
    dataset=dict(
        _delete_=True,
        type='CIFAR100Binary',
        data_root=data_root,
        split='train',
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=64,
    num_workers=4,
    dataset=dict(
        _delete_=True,
        type='CIFAR100Binary',
        data_root=data_root,
        split='test',
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader
