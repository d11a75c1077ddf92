_base_ = './smca_50e.py'

train_cfg = dict(max_epochs=108)
param_scheduler = [
    dict(type='MultiStepLR', begin=0, end=108, by_epoch=True, milestones=[80], gamma=0.1)
]
