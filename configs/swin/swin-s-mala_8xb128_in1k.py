_base_ = './swin-t-mala_8xb128_in1k.py'
model = dict(backbone=dict(arch='s'))
