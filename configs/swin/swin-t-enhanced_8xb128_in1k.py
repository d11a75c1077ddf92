_base_ = './swin-t_8xb128_in1k.py'
# ReLU linear attention, and a depth-wise convolution in the feed-forward layers.
model = dict(
    backbone=dict(attn_cfg=dict(type='LinearAttention', feature_map='relu'), ffn='mix'),
)
