_base_ = '../segformer/segformer_mit-b0_8xb1-160k_cityscapes-768x768.py'
model = dict(backbone=dict(attn_cfg=dict(_delete_=True, type='RWGKP', num_anchors=64, decay=0.1)))
