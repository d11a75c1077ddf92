_base_ = [
    '../_base_/models/smca_nano.py',
    '../_base_/datasets/bccd.py',
    '../_base_/schedules/nano_adamw.py',
    '../_base_/runtime_det.py',
]

train_dataloader = dict(batch_size=2)  # a DETR needs many steps
max_epochs = 24
lr = 3e-4
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
