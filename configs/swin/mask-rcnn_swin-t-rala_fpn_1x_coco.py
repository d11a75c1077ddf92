_base_ = '../ravlt/mask-rcnn_ravlt-t_fpn_1x_coco.py'

model = dict(
    backbone=dict(
        _delete_=True,
        type='Swin',
        arch='t',
        attn_cfg=[
            dict(type='RALA', gate='proj'),
            dict(type='RALA', gate='proj'),
            'WindowAttention',
            'WindowAttention',
        ],
        # Trained by swin-t-rala_8xb128_in1k.py, see README.md.
        init_cfg=dict(
            type='Pretrained', checkpoint='checkpoints/swin-t-rala_in1k.pth', prefix='backbone.'
        ),
    ),
    neck=dict(in_channels=[96, 192, 384, 768]),
)
