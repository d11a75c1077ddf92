_base_ = './retinanet_ravlt-t_fpn_1x_coco.py'

model = dict(
    backbone=dict(arch='base', init_cfg=dict(checkpoint='checkpoints/ravlt-b_in1k.pth')),
    neck=dict(in_channels=[192, 384, 512]),
)
