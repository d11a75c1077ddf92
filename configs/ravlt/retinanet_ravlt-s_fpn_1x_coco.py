_base_ = './retinanet_ravlt-t_fpn_1x_coco.py'

model = dict(
    backbone=dict(arch='small', init_cfg=dict(checkpoint='checkpoints/ravlt-s_in1k.pth')),
    neck=dict(in_channels=[128, 320, 512]),
)
