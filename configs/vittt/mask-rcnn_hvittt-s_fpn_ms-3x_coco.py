_base_ = './mask-rcnn_hvittt-t_fpn_ms-3x_coco.py'

model = dict(
    backbone=dict(
        arch='small',
        drop_path_rate=0.4,
        init_cfg=dict(checkpoint='checkpoints/hvittt-s_in1k.pth'),
    ),
)
