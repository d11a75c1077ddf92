_base_ = './swin-t_8xb128_in1k.py'
model = dict(backbone=dict(attn_cfg='EfficientAttention'))
