_base_ = './segformer_mit-b0-slinear_camvid.py'
model = dict(backbone=dict(attn_cfg=dict(steps=2)))
