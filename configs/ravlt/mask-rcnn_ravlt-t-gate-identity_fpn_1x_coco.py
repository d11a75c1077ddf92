_base_ = ['./mask-rcnn_ravlt-t_fpn_1x_coco.py', '../_base_/models/ravlt_ablations.py']

model = dict(
    backbone=dict(
        _base_.ablations['gate-identity'],
        init_cfg=dict(checkpoint='checkpoints/ravlt-t-gate-identity_in1k.pth'),
    )
)
