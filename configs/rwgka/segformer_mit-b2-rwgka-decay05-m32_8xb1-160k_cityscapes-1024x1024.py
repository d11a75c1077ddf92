_base_ = './segformer_mit-b2-rwgka_8xb1-160k_cityscapes-1024x1024.py'
model = dict(
    backbone=dict(
        attn_cfg=dict(num_anchors=32, decay=0.5),
        init_cfg=dict(checkpoint='checkpoints/mit-b2-rwgka-decay05-m32_in1k.pth'),
    )
)
