_base_ = [
    '../_base_/models/cascade-mask-rcnn_ravlt_fpn.py',
    '../_base_/datasets/coco_instance_ms.py',
    '../_base_/schedules/instance_3x.py',
    '../_base_/runtime_det.py',
]

model = dict(
    backbone=dict(arch='small', init_cfg=dict(checkpoint='checkpoints/ravlt-s_in1k.pth')),
    neck=dict(in_channels=[64, 128, 320, 512]),
)
# Here the release exempts all norms, those of the stem and of the heads too.
optim_wrapper = dict(paramwise_cfg=dict(norm_decay_mult=0.0))
