# The recipe of MMDetection's RTMDet-Ins-L, with the schedule and norms of its RTMDet-L with Swin.
_base_ = 'mmdet::rtmdet/rtmdet-ins_l_8xb32-300e_coco.py'
custom_imports = dict(imports=['mmlinattn'])

norm_cfg = dict(type='GN', num_groups=32)
model = dict(
    data_preprocessor=dict(
        mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375], bgr_to_rgb=True
    ),
    backbone=dict(
        _delete_=True,
        type='RAVLT',
        arch='tiny',
        out_indices=(1, 2, 3),
        # Made from the released ImageNet weights by mmlinattn convert.
        init_cfg=dict(
            type='Pretrained', checkpoint='checkpoints/ravlt-t_in1k.pth', prefix='backbone.'
        ),
    ),
    neck=dict(in_channels=[128, 256, 512], norm_cfg=norm_cfg),
    bbox_head=dict(norm_cfg=dict(_delete_=True, **norm_cfg)),
)

max_epochs, stage2_epochs, lr = 100, 10, 1e-3
train_cfg = dict(max_epochs=max_epochs, dynamic_intervals=[(max_epochs - stage2_epochs, 1)])
optim_wrapper = dict(optimizer=dict(lr=lr))
warm_up, cosine = _base_.param_scheduler
half = max_epochs // 2
param_scheduler = [
    warm_up,
    dict(cosine, eta_min=0.05 * lr, begin=half, end=max_epochs, T_max=half),
]
ema, switch = _base_.custom_hooks
switch = dict(switch, switch_epoch=max_epochs - stage2_epochs)
custom_hooks = [ema, switch]
# The images of a step; MMDetection's config has another schedule's 16 here.
auto_scale_lr = dict(base_batch_size=128)
# Without objects in a batch the loss does not depend on the kernels of masks.
find_unused_parameters = True
