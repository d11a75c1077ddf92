_base_ = './segformer_mit-b0_nuclei.py'
# Without gate and local position it has no layers beyond the projections.
model = dict(backbone=dict(attn_cfg=dict(_delete_=True, type='RALA', gate=None, lepe=0)))
