_base_ = './mlla-t_8xb128_in1k.py'

model = dict(backbone=dict(arch='small'))
train_dataloader = dict(batch_size=64)
# 5e-4 for 512 images a step.
optim_wrapper = dict(optimizer=dict(lr=5e-4))
param_scheduler = [
    _base_.param_scheduler[0],
    dict(_base_.param_scheduler[1], eta_min=5e-6),
]
custom_hooks = [dict(_base_.custom_hooks[0], momentum=1 - 0.9996**0.125), _base_.custom_hooks[1]]
auto_scale_lr = dict(base_batch_size=512)
