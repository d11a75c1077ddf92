_base_ = './timesformer-nano-divided_moving-shapes.py'
ripple = dict(type='ClipRippleAttention', max_distance=2)
model = dict(backbone=dict(scheme='joint', attn_cfg=ripple))
