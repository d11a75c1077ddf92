_base_ = './cvt-13-rwgkp_8xb128_in1k-384px.py'
model = dict(backbone=dict(attn_cfg=['RWGKA', 'RWGKA', 'ConvProjectionAttention']))
