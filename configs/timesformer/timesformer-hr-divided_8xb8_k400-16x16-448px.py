_base_ = './timesformer-divided_8xb8_k400-8x32.py'
model = dict(backbone=dict(num_frames=16, img_size=448))
train_pipeline = _base_.train_pipeline
train_pipeline[0].update(num_frames=16, interval=16)
train_pipeline[1].update(short_side=(448, 512))
train_pipeline[3].update(size=448)
test_pipeline = _base_.test_pipeline
test_pipeline[0].update(num_frames=16, interval=16)
test_pipeline[1].update(short_side=448)
test_pipeline[2].update(size=448)
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
