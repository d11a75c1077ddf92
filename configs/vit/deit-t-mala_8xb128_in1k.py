_base_ = './deit-t-rala_8xb128_in1k.py'
# By the authors of RALA, whose training script is not released either.
model = dict(backbone=dict(attn_cfg=dict(_delete_=True, type='MALA')))
