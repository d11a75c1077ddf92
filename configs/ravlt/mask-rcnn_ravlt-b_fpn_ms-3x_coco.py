_base_ = './mask-rcnn_ravlt-s_fpn_ms-3x_coco.py'

model = dict(
    backbone=dict(arch='base', init_cfg=dict(checkpoint='checkpoints/ravlt-b_in1k.pth')),
    neck=dict(in_channels=[96, 192, 384, 512]),
)
