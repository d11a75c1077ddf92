_base_ = './mask-rcnn_hvittt-t_fpn_ms-3x_coco.py'

model = dict(
    backbone=dict(
        arch='base',
        drop_path_rate=0.6,
        init_cfg=dict(checkpoint='checkpoints/hvittt-b_in1k.pth'),
    ),
    neck=dict(in_channels=[96, 192, 448, 640]),
)
