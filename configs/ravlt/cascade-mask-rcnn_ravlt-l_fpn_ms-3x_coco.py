_base_ = './cascade-mask-rcnn_ravlt-s_fpn_ms-3x_coco.py'

model = dict(
    backbone=dict(arch='large', init_cfg=dict(checkpoint='checkpoints/ravlt-l_in1k.pth')),
    neck=dict(in_channels=[96, 192, 448, 640]),
)
