train_cfg = dict(type='IterBasedTrainLoop', max_iters=160000, val_interval=4000)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

# SegFormer's release: local_configs/segformer/B*/segformer.b*.city.160k.py.
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=6e-5, betas=(0.9, 0.999), weight_decay=0.01),
    paramwise_cfg=dict(norm_decay_mult=0.0, custom_keys=dict(decode_head=dict(lr_mult=10.0))),
)
# Both factors apply during the warm-up: the polynomial counts from the first iteration.
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-6, by_epoch=False, begin=0, end=1500),
    dict(type='PolyLR', eta_min=0.0, power=1.0, begin=0, end=160000, by_epoch=False),
]
auto_scale_lr = dict(enable=False, base_batch_size=8)
