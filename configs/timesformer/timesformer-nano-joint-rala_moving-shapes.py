_base_ = './timesformer-nano-divided_moving-shapes.py'
rala = dict(type='RALA', rotary=False, lepe=0, gate='identity')
model = dict(backbone=dict(scheme='joint', attn_cfg=rala))
