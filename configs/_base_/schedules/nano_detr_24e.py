_base_ = './nano_detr_12e.py'

max_epochs = 24
lr = 3e-4
optim_wrapper = dict(optimizer=dict(lr=lr))
param_scheduler = [dict(_base_.param_scheduler[0], eta_max=lr, total_steps=max_epochs)]
train_cfg = dict(max_epochs=max_epochs, val_interval=max_epochs)
