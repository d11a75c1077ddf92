_base_ = './celebahq_256.py'
train_pipeline = _base_.train_pipeline
train_pipeline[1].update(scale=512)
test_pipeline = _base_.test_pipeline
test_pipeline[1].update(scale=512)
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = dict(dataset=dict(pipeline=test_pipeline))
