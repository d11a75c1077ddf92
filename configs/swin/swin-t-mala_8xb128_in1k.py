_base_ = './swin-t_8xb128_in1k.py'
# The paper does not say which stages are replaced; here the first two, as RALA's.
model = dict(backbone=dict(attn_cfg=['MALA', 'MALA', 'WindowAttention', 'WindowAttention']))
