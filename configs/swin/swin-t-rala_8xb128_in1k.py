_base_ = './swin-t_8xb128_in1k.py'
# As in FLatten-Transformer, which the paper follows, the first two stages are replaced.
model = dict(backbone=dict(attn_cfg=['RALA', 'RALA', 'WindowAttention', 'WindowAttention']))
