_base_ = './swin-t-focused_8xb128_in1k.py'
model = dict(
    backbone=dict(
        attn_cfg=['EfficientAttention', 'EfficientAttention', 'WindowAttention', 'WindowAttention']
    )
)
