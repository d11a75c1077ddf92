_base_ = './cityscapes_1024x1024.py'
train_pipeline = _base_.train_pipeline
train_pipeline[3].crop_size = (640, 1024)
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
