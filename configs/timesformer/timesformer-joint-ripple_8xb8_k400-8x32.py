_base_ = './timesformer-joint_8xb8_k400-8x32.py'
# Rings of Chebyshev distance 0 and 1 over (t, y, x), and all beyond.
model = dict(backbone=dict(attn_cfg=dict(type='ClipRippleAttention', max_distance=2)))
