_base_ = './mask-rcnn_hvittt-t_fpn_1x_coco.py'

model = dict(
    backbone=dict(arch='small', init_cfg=dict(checkpoint='checkpoints/hvittt-s_in1k.pth')),
)
