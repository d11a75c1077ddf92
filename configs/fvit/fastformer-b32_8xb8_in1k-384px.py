_base_ = './vit-b32_8xb8_in1k-384px.py'
model = dict(backbone=dict(attn_cfg='AdditiveAttention'))
