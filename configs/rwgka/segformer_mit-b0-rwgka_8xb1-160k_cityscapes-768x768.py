_base_ = '../segformer/segformer_mit-b0_8xb1-160k_cityscapes-768x768.py'
model = dict(
    backbone=dict(
        attn_cfg=dict(_delete_=True, type='RWGKA', num_anchors=64, decay=0.1),
        init_cfg=dict(checkpoint='checkpoints/mit-b0-rwgka_in1k.pth'),
    ),
    decode_head=dict(init_cfg=dict(type='Xavier', layer='Conv2d')),
)
# Rate, power and initial weights of the RWGKA paper (section 4.1), the rest is SegFormer's.
optim_wrapper = dict(optimizer=dict(lr=1e-4))
param_scheduler = _base_.param_scheduler
param_scheduler[1].power = 0.9
