_base_ = ['./mask-rcnn_ravlt-t_fpn_1x_coco.py', '../_base_/models/ravlt_ablations.py']

model = dict(
    backbone=dict(
        _base_.ablations['no-kv-aug'],
        init_cfg=dict(checkpoint='checkpoints/ravlt-t-no-kv-aug_in1k.pth'),
    )
)
