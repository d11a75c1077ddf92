_base_ = './vil-tiny_8xb128_in1k.py'
model = dict(backbone=dict(position='relative'))
optim_wrapper = dict(paramwise_cfg=dict(custom_keys=dict(relative=dict(decay_mult=0.0))))
