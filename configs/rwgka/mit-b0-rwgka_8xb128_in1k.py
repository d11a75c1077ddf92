_base_ = '../segformer/mit-b0_8xb128_in1k.py'
model = dict(backbone=dict(attn_cfg=dict(type='RWGKA', num_anchors=64, decay=0.1)))
