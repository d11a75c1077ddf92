_base_ = './segformer_mit-b1-rwgka_8xb1-160k_cityscapes-1024x1024.py'
model = dict(
    backbone=dict(
        attn_cfg=dict(type='RWGKP'),
        init_cfg=dict(checkpoint='checkpoints/mit-b1-rwgkp_in1k.pth'),
    )
)
