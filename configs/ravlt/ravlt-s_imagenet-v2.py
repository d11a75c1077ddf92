_base_ = './ravlt-t_imagenet-v2.py'

model = dict(backbone=dict(arch='small'))
