_base_ = './mask-rcnn_mlla-t_fpn_1x_coco.py'

model = dict(
    backbone=dict(arch='base', init_cfg=dict(checkpoint='checkpoints/mlla-b_in1k.pth')),
    neck=dict(in_channels=[96, 192, 384, 768]),
)
