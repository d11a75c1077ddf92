train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=300, val_interval=1)
# The release validates and tests under autocast, too.
val_cfg = dict(type='ValLoop', fp16=True)
test_cfg = dict(type='TestLoop', fp16=True)

# DeiT's, as its main.py and engine.py train.
optim_wrapper = dict(
    type='AmpOptimWrapper',
    loss_scale='dynamic',
    optimizer=dict(type='AdamW', lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.05),
    # timm exempts biases and all vectors from weight decay.
    paramwise_cfg=dict(norm_decay_mult=0.0, bias_decay_mult=0.0, flat_decay_mult=0.0),
)
# DeiT steps timm's scheduler with the index of the finished epoch: epochs 0 and 1 run at 1e-6. The
# cosine counts from epoch 0 and begins after the warm-up.
param_scheduler = [
    dict(type='mmlinattn.engine.schedulers.LinearLR', start_factor=1e-3, end=5, lag=1),
    dict(
        type='mmlinattn.engine.schedulers.CosineAnnealingLR',
        eta_min=1e-5,
        end=300,
        warmup=5,
        lag=1,
    ),
]
auto_scale_lr = dict(enable=False, base_batch_size=1024)
