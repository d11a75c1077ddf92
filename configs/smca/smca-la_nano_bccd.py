_base_ = './smca_nano_bccd.py'

model = dict(encoder=dict(layer_cfg=dict(attn_cfg=dict(_delete_=True, type='LinearAttention'))))
