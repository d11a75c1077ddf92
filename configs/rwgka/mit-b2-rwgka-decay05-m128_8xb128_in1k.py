_base_ = './mit-b2-rwgka_8xb128_in1k.py'
model = dict(backbone=dict(attn_cfg=dict(num_anchors=128, decay=0.5)))
