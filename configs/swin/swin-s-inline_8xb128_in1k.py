_base_ = './swin-t-inline_8xb128_in1k.py'

# cfgs/inline_swin_s.yaml, ATTN_TYPE IISS.
model = dict(
    backbone=dict(
        arch='s',
        attn_cfg=['InLineAttention', 'InLineAttention', 'WindowAttention', 'WindowAttention'],
    ),
)
