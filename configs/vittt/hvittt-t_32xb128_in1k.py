_base_ = '../mlla/mlla-t_8xb128_in1k.py'

# Recipe and authors are MLLA's. The classifier has a batch norm of the last tokens.
model = dict(
    backbone=dict(type='HViTTT', out_norm=False),
    neck=dict(_delete_=True, type='RAVLTNeck', in_channels=512, out_channels=None),
)
# The paper has 4096 images a step; the release 5e-4 for 512 of them.
optim_wrapper = dict(optimizer=dict(lr=4e-3))
param_scheduler = [
    _base_.param_scheduler[0],
    dict(_base_.param_scheduler[1], eta_min=4e-5),
]
auto_scale_lr = dict(base_batch_size=4096)
custom_hooks = [dict(_base_.custom_hooks[0], momentum=1 - 0.9996), *_base_.custom_hooks[1:]]
