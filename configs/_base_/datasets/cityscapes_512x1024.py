_base_ = './cityscapes_1024x1024.py'
# Images are resized to a short side of 512, in training and test.
train_pipeline = _base_.train_pipeline
train_pipeline[2].scale = (1024, 512)
train_pipeline[3].crop_size = (512, 1024)
test_pipeline = _base_.test_pipeline
test_pipeline[1].scale = (1024, 512)
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
