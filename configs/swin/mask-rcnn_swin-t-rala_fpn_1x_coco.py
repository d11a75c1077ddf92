_base_ = '../ravlt/mask-rcnn_ravlt-t_fpn_1x_coco.py'

model = dict(
    backbone=dict(
        _delete_=True,
        type='Swin',
        arch='t',
        attn_cfg=dict(type='RALA', gate='identity'),
        # Made from the released ImageNet weights by tools/model_converters/convert.py.
        init_cfg=dict(
            type='Pretrained', checkpoint='checkpoints/swin-t_in1k.pth', prefix='backbone.'
        ),
    ),
    neck=dict(in_channels=[96, 192, 384, 768]),
)
