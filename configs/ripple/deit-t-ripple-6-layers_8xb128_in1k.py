_base_ = './deit-t-la_8xb128_in1k.py'
ripple = dict(type='RippleAttention', threshold=0.001)
model = dict(backbone=dict(attn_cfg=[ripple] * 6 + ['LinearAttention'] * 6))
