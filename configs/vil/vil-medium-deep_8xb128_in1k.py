_base_ = './vil-small_8xb128_in1k.py'
model = dict(backbone=dict(arch='medium'))
# By the name of the released file.
optim_wrapper = dict(optimizer=dict(lr=8e-4))
param_scheduler = _base_.param_scheduler
param_scheduler[0].update(start_factor=2.5e-3)
