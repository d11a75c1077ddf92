# ViL's release (README, src/config/msvit.yaml, src/optim): rates change by iterations, the cosine
# counts from the first one, biases are decayed, but for that of the head.
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=300, val_interval=1)
# The release validates and tests under autocast, too.
val_cfg = dict(type='ValLoop', fp16=True)
test_cfg = dict(type='TestLoop', fp16=True)

optim_wrapper = dict(
    type='AmpOptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1),
    paramwise_cfg=dict(
        norm_decay_mult=0.0,
        custom_keys={
            'row_embed': dict(decay_mult=0.0),
            'column_embed': dict(decay_mult=0.0),
            'extra_embed': dict(decay_mult=0.0),
            'extra_tokens': dict(decay_mult=0.0),
            'relative': dict(decay_mult=0.0),
            'head.fc.bias': dict(decay_mult=0.0),
        },
    ),
)
param_scheduler = [
    dict(
        type='mmlinattn.engine.schedulers.LinearLR',
        start_factor=2e-3,
        end=5,
        convert_to_iter_based=True,
    ),
    dict(
        type='mmlinattn.engine.schedulers.CosineAnnealingLR',
        eta_min=1e-6,
        end=300,
        warmup=5,
        convert_to_iter_based=True,
    ),
]
auto_scale_lr = dict(enable=False, base_batch_size=1024)
