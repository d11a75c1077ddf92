_base_ = './semantic-fpn_ravlt-nano_shapes.py'

# MALA in all layers but the first of stage 3 and the only one of stage 4.
model = dict(backbone=dict(attn_cfg=dict(default='MALA', softmax=[2, 'last1'])))
