_base_ = './deit-t_8xb128_in1k.py'
model = dict(backbone=dict(arch='deit-s'), head=dict(in_channels=384))
