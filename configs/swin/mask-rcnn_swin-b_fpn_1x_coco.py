_base_ = './mask-rcnn_swin-t-rala_fpn_1x_coco.py'

# No recipe of this model is released; this is that of RAVLT.
model = dict(
    backbone=dict(
        arch='b',
        attn_cfg='WindowAttention',
        drop_path_rate=0.3,
        init_cfg=dict(checkpoint='checkpoints/swin-b_in1k.pth'),
    ),
    neck=dict(in_channels=[128, 256, 512, 1024]),
)
