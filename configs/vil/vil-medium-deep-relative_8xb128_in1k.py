_base_ = './vil-medium-deep_8xb128_in1k.py'
model = dict(backbone=dict(position='relative'))
