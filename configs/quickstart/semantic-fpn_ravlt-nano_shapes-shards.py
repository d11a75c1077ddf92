# Trains from shards that mmlinattn to-shards makes of the config below.
_base_ = './semantic-fpn_ravlt-nano_shapes.py'
batch_size, num_workers = 8, 0
train_dataloader = dict(
    batch_size=batch_size,
    num_workers=num_workers,
    sampler=dict(
        _delete_=True,
        type='ShardSampler',
        infinite=True,  # training by iterations; leave it out for epochs
        batch_size=batch_size,
        num_workers=num_workers,
    ),
    dataset=dict(
        _delete_=True,
        type='ShardDataset',
        data_root='data/shapes-shards',  # or s3://..., https://...
        ann_file='train.json',
        pipeline=_base_.train_pipeline,
    ),
)
