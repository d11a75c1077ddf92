_base_ = './swin-t-rala_8xb128_in1k.py'
model = dict(backbone=dict(arch='s'))
