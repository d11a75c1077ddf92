_base_ = '../smca/smca_nano_shapes.py'

# Linear attention has no logits, to which SMCA adds its map around predicted points.
attention = dict(type='LinearCrossAttention', attn_cfg='MALA')
model = dict(decoder=dict(layer_cfg=dict(cross_attn_cfg=attention)))
