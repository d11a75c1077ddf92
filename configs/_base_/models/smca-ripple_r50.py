_base_ = './smca-la_r50.py'

model = dict(encoder=dict(layer_cfg=dict(attn_cfg=dict(type='RippleAttention', max_distance=4))))
