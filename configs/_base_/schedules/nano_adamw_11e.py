# A convolutional detector on BCCD, on one or two CPU cores.
_base_ = './nano_adamw.py'

max_epochs = 11
optim_wrapper = dict(optimizer=dict(lr=2e-3))
param_scheduler = [
    dict(
        type='OneCycleLR',
        eta_max=2e-3,
        total_steps=max_epochs,
        pct_start=0.15,
        by_epoch=True,
        convert_to_iter_based=True,
    )
]
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=max_epochs, val_interval=max_epochs)
