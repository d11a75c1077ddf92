_base_ = './mlla-t_imagenet-v2.py'

model = dict(backbone=dict(arch='small'))
