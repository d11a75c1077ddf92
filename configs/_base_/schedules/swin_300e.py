# Swin's release (config.py, optimizer.py, lr_scheduler.py): 20 epochs of warm-up, gradients clipped
# at 5. Its schedule follows the index of the iteration before: lag=1.
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=300, val_interval=1)
# The release validates and tests under autocast, too.
val_cfg = dict(type='ValLoop', fp16=True)
test_cfg = dict(type='TestLoop', fp16=True)

optim_wrapper = dict(
    type='AmpOptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.05),
    clip_grad=dict(max_norm=5.0),
    paramwise_cfg=dict(
        norm_decay_mult=0.0,
        bias_decay_mult=0.0,
        flat_decay_mult=0.0,
        custom_keys={'.relative_bias': dict(decay_mult=0.0)},
    ),
)
param_scheduler = [
    dict(
        type='mmlinattn.engine.schedulers.LinearLR',
        start_factor=1e-3,
        end=20,
        lag=1,
        convert_to_iter_based=True,
    ),
    # The cosine counts from the first iteration, as in the release until its commit 22e57f4.
    dict(
        type='mmlinattn.engine.schedulers.CosineAnnealingLR',
        eta_min=1e-5,
        end=300,
        warmup=20,
        lag=1,
        convert_to_iter_based=True,
    ),
]
auto_scale_lr = dict(enable=False, base_batch_size=1024)
