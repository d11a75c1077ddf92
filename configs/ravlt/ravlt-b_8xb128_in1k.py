_base_ = './ravlt-t_8xb128_in1k.py'

model = dict(
    backbone=dict(arch='base'),
)
