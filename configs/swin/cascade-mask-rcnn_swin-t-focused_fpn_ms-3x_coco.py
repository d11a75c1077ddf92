_base_ = ['./cascade-mask-rcnn_swin-b_fpn_ms-3x_coco.py', '../_base_/models/swin-focused.py']

model = dict(
    backbone=dict(_base_.swin_focused, arch='t', drop_path_rate=0.1),
    neck=dict(in_channels=[96, 192, 384, 768]),
)
