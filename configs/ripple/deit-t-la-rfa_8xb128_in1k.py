_base_ = './deit-t-la_8xb128_in1k.py'
feature_map = dict(type='RFAFeatures', resample=True)
model = dict(backbone=dict(attn_cfg=dict(type='LinearAttention', feature_map=feature_map)))
