_base_ = ['./retinanet_1x.py', './undecayed_norms.py']

optim_wrapper = dict(
    loss_scale='dynamic',
    optimizer=dict(betas=(0.9, 0.999), weight_decay=0.05),
    paramwise_cfg=dict(custom_keys=_base_.undecayed_norms),
)
