_base_ = './mask-rcnn_swin-t-agent_fpn_ms-3x_coco.py'

# No recipe of this model is released; this is that of Swin-T with agent attention.
model = dict(
    backbone=dict(
        arch='b',
        attn_cfg='WindowAttention',
        drop_path_rate=0.3,
        init_cfg=dict(checkpoint='checkpoints/swin-b_in1k.pth'),
    ),
    neck=dict(in_channels=[128, 256, 512, 1024]),
)
