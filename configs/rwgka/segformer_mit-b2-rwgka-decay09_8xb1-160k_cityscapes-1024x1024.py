_base_ = './segformer_mit-b2-rwgka_8xb1-160k_cityscapes-1024x1024.py'
model = dict(
    backbone=dict(
        attn_cfg=dict(decay=0.9),
        init_cfg=dict(checkpoint='checkpoints/mit-b2-rwgka-decay09_in1k.pth'),
    )
)
