_base_ = [
    '../_base_/models/mask2former_ravlt-t_seg.py',
    '../_base_/datasets/ade20k_512x512.py',
    '../_base_/runtime_seg.py',
]
custom_imports = dict(imports=['mmlinattn', 'mmdet.models'])

# The schedule of MMSegmentation's Mask2Former. Images are resized as for the other ADE20K configs,
# by 0.5 to 2; there the shorter side is 256 to 1024 pixels.
embeddings = dict(lr_mult=1.0, decay_mult=0.0)
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-4, betas=(0.9, 0.999), weight_decay=0.05),
    clip_grad=dict(max_norm=0.01),
    paramwise_cfg=dict(
        norm_decay_mult=0.0,
        custom_keys=dict(
            backbone=dict(lr_mult=0.1, decay_mult=1.0),
            query_embed=embeddings,
            query_feat=embeddings,
            level_embed=embeddings,
        ),
    ),
)
max_iters = 160000
param_scheduler = [
    dict(type='PolyLR', eta_min=0, power=0.9, begin=0, end=max_iters, by_epoch=False)
]
train_cfg = dict(type='IterBasedTrainLoop', max_iters=max_iters, val_interval=5000)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
default_hooks = dict(checkpoint=dict(interval=5000, save_best='mIoU'))
auto_scale_lr = dict(enable=False, base_batch_size=16)
