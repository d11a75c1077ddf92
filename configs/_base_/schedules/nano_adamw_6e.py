_base_ = './nano_adamw_11e.py'

max_epochs = 6
param_scheduler = [dict(_base_.param_scheduler[0], total_steps=max_epochs)]
train_cfg = dict(max_epochs=max_epochs, val_interval=max_epochs)
