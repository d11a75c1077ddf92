_base_ = './timesformer-divided_8xb8_k400-8x32.py'
model = dict(backbone=dict(num_frames=96))
train_pipeline = _base_.train_pipeline
train_pipeline[0].update(num_frames=96, interval=4)
test_pipeline = _base_.test_pipeline
test_pipeline[0].update(num_frames=96, interval=4)
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
