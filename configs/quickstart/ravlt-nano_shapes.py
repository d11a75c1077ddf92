_base_ = [
    '../_base_/models/ravlt-nano_classifier.py',
    '../_base_/datasets/shapes_classification.py',
    '../_base_/schedules/nano_adamw.py',
    '../_base_/runtime_cls.py',
]
max_epochs = 5
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
