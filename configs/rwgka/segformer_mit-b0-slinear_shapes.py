_base_ = '../segformer/segformer_mit-b0_shapes.py'
model = dict(backbone=dict(attn_cfg=dict(_delete_=True, type='SlinearAttention')))
