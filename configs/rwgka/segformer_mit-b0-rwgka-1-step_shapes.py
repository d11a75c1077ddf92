_base_ = '../segformer/segformer_mit-b0_shapes.py'
model = dict(
    backbone=dict(attn_cfg=dict(_delete_=True, type='RWGKA', num_anchors=64, decay=0.1, steps=1))
)
