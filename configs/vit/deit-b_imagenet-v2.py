_base_ = './deit-s_imagenet-v2.py'
model = dict(backbone=dict(arch='deit-b'), head=dict(in_channels=768))
