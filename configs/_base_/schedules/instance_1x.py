_base_ = './retinanet_1x.py'

optim_wrapper = dict(
    optimizer=dict(betas=(0.9, 0.999), weight_decay=0.05),
    paramwise_cfg=dict(norm_decay_mult=0.0),
)
