# A DETR on one or two CPU cores.
_base_ = './nano_adamw.py'

max_epochs = 12
lr = 5e-4
optim_wrapper = dict(optimizer=dict(lr=lr, weight_decay=1e-4), clip_grad=dict(max_norm=1.0))
param_scheduler = [
    dict(
        type='OneCycleLR',
        eta_max=lr,
        total_steps=max_epochs,
        pct_start=0.15,
        by_epoch=True,
        convert_to_iter_based=True,
    )
]
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=max_epochs, val_interval=max_epochs)
