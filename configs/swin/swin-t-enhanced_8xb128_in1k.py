_base_ = './swin-t-focused_8xb128_in1k.py'
# ReLU linear attention, and a depth-wise convolution in the feed-forward layers beside it.
model = dict(
    backbone=dict(
        attn_cfg=[
            dict(type='LinearAttention', feature_map='relu'),
            dict(type='LinearAttention', feature_map='relu'),
            'WindowAttention',
            'WindowAttention',
        ],
        ffn=['mix', 'mix', 'mlp', 'mlp'],
    )
)
