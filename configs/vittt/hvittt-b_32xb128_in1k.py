_base_ = './hvittt-t_32xb128_in1k.py'

model = dict(backbone=dict(arch='base'), neck=dict(in_channels=640), head=dict(in_channels=640))
