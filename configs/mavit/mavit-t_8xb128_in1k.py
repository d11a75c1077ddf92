_base_ = '../ravlt/ravlt-t_8xb128_in1k.py'

model = dict(
    backbone=dict(type='MAViT'),
    neck=dict(out_channels=2048),
    head=dict(in_channels=2048),
)
