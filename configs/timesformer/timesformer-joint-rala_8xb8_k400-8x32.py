_base_ = './timesformer-joint_8xb8_k400-8x32.py'
# Rotary and local position are of 2D maps. The identity gate keeps the shapes of ViT's weights.
model = dict(backbone=dict(attn_cfg=dict(type='RALA', rotary=False, lepe=0, gate='identity')))
