_base_ = './swin-t_8xb128_in1k.py'
model = dict(backbone=dict(arch='b'), head=dict(in_channels=1024))
