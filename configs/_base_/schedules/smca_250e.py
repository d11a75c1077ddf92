_base_ = './smca_50e.py'

# The release does not say when the rate drops; here after four fifths, as in 50 epochs.
train_cfg = dict(max_epochs=250)
param_scheduler = [
    dict(type='MultiStepLR', begin=0, end=250, by_epoch=True, milestones=[200], gamma=0.1)
]
