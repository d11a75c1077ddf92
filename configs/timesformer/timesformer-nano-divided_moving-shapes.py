_base_ = [
    '../_base_/models/timesformer.py',
    '../_base_/datasets/moving_shapes.py',
    '../_base_/schedules/nano_adamw.py',
    '../_base_/runtime_video.py',
]
model = dict(
    backbone=dict(
        arch=dict(_delete_=True, embed_dims=64, num_heads=4, depth=2, patch_size=8, mlp_ratio=2),
        img_size=32,
        drop_path_rate=0.0,
        # A mean of patches learns faster from few clips than a class token.
        with_cls_token=False,
        out_type='avg_featmap',
        position_std=0.5,
        init_cfg=None,
    ),
    head=dict(num_classes=4, in_channels=64, topk=(1,), init_cfg=dict(type='Normal', std=0.01)),
)
max_epochs = 24
# From scratch on few clips, positions are learnt ten times as fast as all else.
positions = dict(lr_mult=10.0, decay_mult=0.0)
optim_wrapper = dict(
    optimizer=dict(lr=2e-3, weight_decay=0.01),
    paramwise_cfg=dict(custom_keys=dict(pos_embed=positions, time_embed=positions)),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-3, by_epoch=True, end=1, convert_to_iter_based=True),
    dict(
        type='CosineAnnealingLR',
        eta_min=0.0,
        by_epoch=True,
        begin=1,
        end=max_epochs,
        convert_to_iter_based=True,
    ),
]
train_cfg = dict(by_epoch=True, max_epochs=max_epochs, val_interval=max_epochs)
