_base_ = './vit-b16_8xb8_in1k-384px.py'
model = dict(backbone=dict(attn_cfg='AdditiveAttention'))
