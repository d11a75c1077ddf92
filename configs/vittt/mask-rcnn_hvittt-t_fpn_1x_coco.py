_base_ = '../mlla/mask-rcnn_mlla-t_fpn_1x_coco.py'

model = dict(
    backbone=dict(
        type='HViTTT',
        with_cp=True,
        # Made from the released ImageNet weights by mmlinattn convert.
        init_cfg=dict(checkpoint='checkpoints/hvittt-t_in1k.pth'),
    ),
    neck=dict(in_channels=[64, 128, 320, 512]),
)
# The release says 4 images a GPU, and not how many GPUs.
train_dataloader = dict(batch_size=4)
optim_wrapper = dict(
    type='AmpOptimWrapper',
    loss_scale='dynamic',
    optimizer=dict(lr=2e-4),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.001, by_epoch=False, begin=0, end=1000),
    dict(type='MultiStepLR', begin=0, end=12, by_epoch=True, milestones=[8, 11], gamma=0.1),
]
auto_scale_lr = dict(base_batch_size=32)
