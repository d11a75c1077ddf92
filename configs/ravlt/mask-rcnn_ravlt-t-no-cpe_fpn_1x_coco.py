_base_ = ['./mask-rcnn_ravlt-t_fpn_1x_coco.py', '../_base_/models/ravlt_ablations.py']

model = dict(
    backbone=dict(
        _base_.ablations['no-cpe'],
        init_cfg=dict(checkpoint='checkpoints/ravlt-t-no-cpe_in1k.pth'),
    )
)
