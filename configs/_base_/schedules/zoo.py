# Long enough to tell attentions apart, short enough for a hundred trainings (make zoo).
_base_ = './nano_adamw.py'
max_epochs = 6
param_scheduler = [
    dict(
        type='OneCycleLR',
        eta_max=1e-3,
        total_steps=max_epochs,
        pct_start=0.15,
        by_epoch=True,
        convert_to_iter_based=True,
    )
]
train_cfg = dict(by_epoch=True, max_epochs=max_epochs, val_interval=max_epochs)
