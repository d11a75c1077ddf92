_base_ = [
    '../_base_/models/mask-rcnn_ravlt-nano_fpn.py',
    '../_base_/datasets/shapes_instance.py',
    '../_base_/schedules/nano_adamw.py',
    '../_base_/runtime_det.py',
]

# An image has one to four shapes: twice the steps teach more than batches of eight.
train_dataloader = dict(batch_size=4)
model = dict(train_cfg=dict(rcnn=dict(sampler=dict(num=32))))

max_epochs = 8
optim_wrapper = dict(optimizer=dict(lr=1.5e-3))
param_scheduler = [
    dict(
        type='OneCycleLR',
        eta_max=1.5e-3,
        total_steps=max_epochs,
        pct_start=0.15,
        by_epoch=True,
        convert_to_iter_based=True,
    )
]
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=max_epochs, val_interval=max_epochs)
