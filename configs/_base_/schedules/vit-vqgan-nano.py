# Short enough for four attentions on two data sets in 15 minutes of two CPU cores.
_base_ = './nano_adamw.py'
max_iters = 200
optim_wrapper = dict(
    constructor='GeneratorDiscriminatorConstructor',
    optimizer=dict(lr=2e-3, betas=(0.9, 0.99), weight_decay=1e-4),
    clip_grad=dict(max_norm=1.0),
)
param_scheduler = [
    dict(type='OneCycleLR', eta_max=2e-3, total_steps=max_iters, pct_start=0.15, by_epoch=False)
]
train_cfg = dict(type='IterBasedTrainLoop', max_iters=max_iters, val_interval=max_iters)
