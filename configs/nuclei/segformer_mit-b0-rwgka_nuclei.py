_base_ = './segformer_mit-b0_nuclei.py'
model = dict(backbone=dict(attn_cfg=dict(_delete_=True, type='RWGKA', num_anchors=64, decay=0.1)))
