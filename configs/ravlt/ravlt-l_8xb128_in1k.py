_base_ = './ravlt-t_8xb128_in1k.py'

model = dict(
    backbone=dict(arch='large'),
    neck=dict(in_channels=640),
)
