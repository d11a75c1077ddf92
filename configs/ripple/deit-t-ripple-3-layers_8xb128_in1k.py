_base_ = './deit-t-la_8xb128_in1k.py'
model = dict(backbone=dict(attn_cfg=['RippleAttention'] * 3 + ['LinearAttention'] * 9))
