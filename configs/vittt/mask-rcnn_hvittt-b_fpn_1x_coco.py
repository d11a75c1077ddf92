_base_ = './mask-rcnn_hvittt-t_fpn_1x_coco.py'

model = dict(
    backbone=dict(arch='base', init_cfg=dict(checkpoint='checkpoints/hvittt-b_in1k.pth')),
    neck=dict(in_channels=[96, 192, 448, 640]),
)
