_base_ = './vil-tiny_8xb128_in1k.py'
model = dict(backbone=dict(position='relative'))
