_base_ = './mask-rcnn_mlla-t_fpn_1x_coco.py'

model = dict(
    backbone=dict(arch='small', init_cfg=dict(checkpoint='checkpoints/mlla-s_in1k.pth')),
)
