# DeiT's augmentation, which MMPretrain's Swin has too.
_base_ = 'mmpretrain::_base_/datasets/imagenet_bs64_swin_224.py'

train_dataloader = dict(batch_size=128, num_workers=8, persistent_workers=True, drop_last=True)
val_dataloader = dict(batch_size=128, num_workers=8, persistent_workers=True)
test_dataloader = val_dataloader
