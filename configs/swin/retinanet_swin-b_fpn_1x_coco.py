_base_ = '../ravlt/retinanet_ravlt-t_fpn_1x_coco.py'

# No recipe of this model is released; this is that of RAVLT.
model = dict(
    backbone=dict(
        _delete_=True,
        type='Swin',
        arch='b',
        out_indices=(1, 2, 3),
        drop_path_rate=0.3,
        init_cfg=dict(
            type='Pretrained', checkpoint='checkpoints/swin-b_in1k.pth', prefix='backbone.'
        ),
    ),
    neck=dict(in_channels=[256, 512, 1024]),
)
