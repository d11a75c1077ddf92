_base_ = [
    '../_base_/models/vit_classifier.py',
    '../_base_/datasets/cifar100.py',
    '../_base_/schedules/imagenet_300e.py',
    '../_base_/runtime_cls.py',
]

model = dict(
    data_preprocessor=dict(num_classes=100),
    backbone=dict(
        arch=dict(_delete_=True, embed_dims=192, num_heads=6, patch_size=2, drop_path_rate=0.1),
        img_size=32,
        with_cls_token=False,
        out_type='avg_featmap',
    ),
    head=dict(num_classes=100),
)
optim_wrapper = dict(
    optimizer=dict(lr=5e-4),
    paramwise_cfg=dict(custom_keys={'.pos_embed': dict(decay_mult=0.0)}),
)
# The warm-up starts at DeiT's 1e-6.
param_scheduler = _base_.param_scheduler
param_scheduler[0].update(start_factor=2e-3)
auto_scale_lr = dict(base_batch_size=512)
# The paper reports the best epoch.
default_hooks = dict(checkpoint=dict(save_best='accuracy/top1'))
