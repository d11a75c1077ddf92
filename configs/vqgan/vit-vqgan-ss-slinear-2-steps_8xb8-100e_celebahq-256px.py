_base_ = './vit-vqgan-ss-slinear_8xb8-100e_celebahq-256px.py'
model = dict(backbone=dict(attn_cfg=dict(steps=2, decay=0.1)))
