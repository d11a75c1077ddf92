_base_ = 'mmdet::_base_/schedules/schedule_1x.py'

optim_wrapper = dict(
    _delete_=True,
    type='AmpOptimWrapper',
    loss_scale=512.0,
    optimizer=dict(type='AdamW', lr=1e-4, weight_decay=1e-4),
)
