_base_ = [
    '../_base_/models/rtmdet_nano.py',
    '../_base_/datasets/shapes_instance.py',
    '../_base_/schedules/nano_adamw_6e.py',
    '../_base_/runtime_det.py',
]

# Without masks: given some, the assigner would want them in another form than RTMDet passes on.
load, _, *rest = _base_.train_pipeline
train_pipeline = [load, dict(type='LoadAnnotations', with_bbox=True), *rest]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_evaluator = dict(metric='bbox')
test_evaluator = val_evaluator
optim_wrapper = dict(paramwise_cfg=dict(bypass_duplicate=True))  # levels share convolutions
