_base_ = './semantic-fpn_dinov2-s_8xb2-80k_ade20k-512x512.py'

model = dict(
    backbone=dict(
        arch='dinov3-s',
        # Made from dinov3_vits16_pretrain_lvd1689m-08c60483.pth by mmlinattn convert.
        init_cfg=dict(checkpoint='checkpoints/dinov3-s_lvd1689m.pth'),
    ),
)
