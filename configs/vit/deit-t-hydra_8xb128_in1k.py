_base_ = './deit-t_8xb128_in1k.py'
model = dict(backbone=dict(attn_cfg='HydraAttention'))
