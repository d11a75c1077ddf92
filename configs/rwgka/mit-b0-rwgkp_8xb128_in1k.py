_base_ = './mit-b0-rwgka_8xb128_in1k.py'
model = dict(backbone=dict(attn_cfg=dict(type='RWGKP')))
