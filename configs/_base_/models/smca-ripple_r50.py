_base_ = './smca-la_r50.py'

ripple = dict(type='RippleAttention', max_distance=4, threshold=0.001)
model = dict(encoder=dict(layer_cfg=dict(attn_cfg=ripple)))
