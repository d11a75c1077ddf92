_base_ = './imagenet_224.py'

train_pipeline = _base_.train_pipeline
train_pipeline[1].update(scale=384)
# As much of the image as with 224: the middle of 438 pixels.
test_pipeline = _base_.test_pipeline
test_pipeline[1].update(scale=438)
test_pipeline[2].update(crop_size=384)

train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
