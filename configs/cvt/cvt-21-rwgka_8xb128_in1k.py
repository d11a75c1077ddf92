_base_ = './cvt-21_8xb128_in1k.py'
model = dict(backbone=dict(attn_cfg=['RWGKA', 'RWGKA', 'ConvProjectionAttention']))
