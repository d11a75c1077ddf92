_base_ = '../mlla/mlla-t_8xb128_in1k.py'

model = dict(
    backbone=dict(
        _delete_=True,
        type='ViT',
        arch='vittt-t',
        attn_cfg='TTTAttention',
        out_type='avg_featmap',
    ),
    neck=None,
    head=dict(in_channels=192),
)
# Only H-ViT³ is averaged.
custom_hooks = []
default_hooks = dict(checkpoint=dict(save_best='accuracy/top1', rule='greater'))
# The paper has 4096 images a step; the release 5e-4 for 512 of them.
optim_wrapper = dict(optimizer=dict(lr=4e-3))
param_scheduler = [
    _base_.param_scheduler[0],
    dict(_base_.param_scheduler[1], eta_min=4e-5),
]
auto_scale_lr = dict(base_batch_size=4096)
