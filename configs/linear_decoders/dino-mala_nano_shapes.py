_base_ = './dino_nano_shapes.py'

# The cross-attention of DINO is deformable, and its cost is linear already.
attention = dict(type='LinearCrossAttention', attn_cfg='MALA')
model = dict(type='DINOWithAttention', decoder=dict(layer_cfg=dict(self_attn_cfg=attention)))
