_base_ = './retinanet_ravlt-t_fpn_1x_coco.py'

model = dict(
    backbone=dict(arch='large', init_cfg=dict(checkpoint='checkpoints/ravlt-l_in1k.pth')),
    neck=dict(in_channels=[192, 448, 640]),
)
