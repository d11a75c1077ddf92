_base_ = './timesformer-divided_8xb8_ssv2-8.py'
model = dict(backbone=dict(num_frames=64))
train_pipeline = _base_.train_pipeline
train_pipeline[0].update(num_frames=64)
test_pipeline = _base_.test_pipeline
test_pipeline[0].update(num_frames=64)
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
