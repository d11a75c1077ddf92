_base_ = [
    '../_base_/models/vit_classifier.py',
    '../_base_/datasets/imagenet_384.py',
    '../_base_/schedules/imagenet_300e.py',
    '../_base_/runtime_cls.py',
]

model = dict(
    backbone=dict(arch='b16', img_size=384, drop_path_rate=0.1), head=dict(in_channels=768)
)

# The paper says 50 epochs of batches of 64 and the learning rate; all else is DeiT's, which prints
# the best epoch.
train_dataloader = dict(batch_size=8)
train_cfg = dict(max_epochs=50)
optim_wrapper = dict(
    optimizer=dict(lr=5e-4),
    paramwise_cfg=dict(
        custom_keys={'.cls_token': dict(decay_mult=0.0), '.pos_embed': dict(decay_mult=0.0)}
    ),
)
param_scheduler = _base_.param_scheduler
param_scheduler[0].update(start_factor=2e-3)
param_scheduler[1].update(end=50)
auto_scale_lr = dict(base_batch_size=64)
default_hooks = dict(checkpoint=dict(save_best='accuracy/top1'))
