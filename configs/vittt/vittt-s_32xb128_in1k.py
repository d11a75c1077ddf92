_base_ = './vittt-t_32xb128_in1k.py'

model = dict(backbone=dict(arch='vittt-s'), head=dict(in_channels=384))
