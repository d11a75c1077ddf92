_base_ = './segformer_mit-b0-rwgka_8xb1-160k_cityscapes-768x768.py'
model = dict(
    backbone=dict(
        attn_cfg=dict(type='RWGKP'),
        init_cfg=dict(checkpoint='checkpoints/mit-b0-rwgkp_in1k.pth'),
    )
)
